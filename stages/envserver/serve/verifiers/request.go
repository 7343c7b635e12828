package verifiers

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	wire "github.com/prl-project/prl/stages/envserver/bridge/verifiers"
)

// object is a map as the wire has it.
type object = map[string]any

func encoded(v any) json.RawMessage { return wire.JSON(v) }

// player is who plays the policy: a model, and how it is asked.
type player struct {
	model    string
	base     string // with /v1
	access   access
	tokens   bool          // it is asked for tokens, over /inference/v1/generate
	timeout  time.Duration // of one try; 0 for none
	retries  int
	sampling object // what the client wants, without nulls
}

// errInvalid is a request that is not as it should be.
type errInvalid struct{ text string }

func (e errInvalid) Error() string { return e.text }

func invalid(format string, args ...any) error { return errInvalid{fmt.Sprintf(format, args...)} }

// playerOf reads the fields client, model and sampling of a request.
func (s *Server) playerOf(request object) (player, error) {
	p := player{retries: s.cfg.Limits.Retries, timeout: s.cfg.Limits.Request}
	client, ok := request["client"].(object)
	if !ok {
		return p, invalid("client: Field required")
	}
	if p.model, ok = request["model"].(string); !ok || p.model == "" {
		return p, invalid("model: Field required")
	}
	switch kind := client["type"]; kind {
	case "eval", nil:
	case "train":
		p.tokens = true
	default:
		return p, invalid("client: type %v: want eval or train", kind)
	}
	if limits, ok := client["timeout"].(object); ok {
		p.timeout = least(p.timeout, seconds(limits["read"]))
	}
	sampling, ok := request["sampling"].(object)
	if !ok && request["sampling"] != nil {
		return p, invalid("sampling: want a map")
	}
	p.sampling = flat(sampling)
	return s.reach(p, client, "base_url", "headers", "headers_from_env")
}

// playerOfV0 reads the fields client_config, model and sampling_args.
func (s *Server) playerOfV0(request object) (player, error) {
	p := player{retries: s.cfg.Limits.Retries, timeout: s.cfg.Limits.Request}
	client, ok := request["client_config"].(object)
	if !ok {
		return p, invalid("client_config: Field required")
	}
	if p.model, ok = request["model"].(string); !ok || p.model == "" {
		return p, invalid("model: Field required")
	}
	switch kind := client["client_type"]; kind {
	case "openai_chat_completions", nil:
	case "renderer":
		p.tokens = true
	default:
		return p, invalid("client_config: client_type %v: this server knows openai_chat_completions and renderer", kind)
	}
	p.timeout = least(p.timeout, seconds(client["timeout"]))
	sampling, _ := request["sampling_args"].(object)
	p.sampling = flat(sampling)
	return s.reach(p, client, "api_base_url", "extra_headers", "")
}

// reach finds out where the model is, and what may be sent there.
func (s *Server) reach(p player, client object, base, headers, fromVars string) (player, error) {
	var ok bool
	if p.base, ok = client[base].(string); !ok {
		return p, invalid("client: %s: Field required", base)
	}
	keyVar, _ := client["api_key_var"].(string)
	var err error
	if p.access, err = s.cfg.Models.access(p.base, keyVar, texts(client[headers]), texts(client[fromVars])); err != nil {
		return p, invalid("client: %v", err)
	}
	p.base = strings.TrimRight(p.base, "/")
	if p.tokens && s.cfg.Renderer == nil {
		return p, invalid(`client: a client that wants tokens ("train", "renderer") needs the model's tokenizer here: start the server with --tokenizer FOLDER`)
	}
	return p, nil
}

// flat is sampling without nulls, with what stands in extra_body beside the rest.
func flat(sampling object) object {
	all := object{}
	extra, _ := sampling["extra_body"].(object)
	for _, layer := range []object{extra, sampling} {
		for name, v := range layer {
			switch {
			case name == "extra_body" || v == nil:
			case name == "max_completion_tokens":
				all["max_tokens"] = v
			default:
				all[name] = v
			}
		}
	}
	return all
}

func texts(v any) map[string]string {
	all := map[string]string{}
	given, _ := v.(object)
	for name, value := range given {
		if text, ok := value.(string); ok {
			all[name] = text
		}
	}
	return all
}

// number reads a figure; ok is false where there is none.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, !math.IsNaN(v) && !math.IsInf(v, 0)
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	}
	return 0, false
}

func seconds(v any) time.Duration {
	n, ok := number(v)
	if !ok || n <= 0 || n > 1e6 {
		return 0
	}
	return time.Duration(n * float64(time.Second))
}

// least is the shorter of two limits, of which 0 is none.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// decoded reads the map of a message.
func decoded(payload []byte) (object, error) {
	v, err := wire.Unpack(payload)
	if err != nil {
		return nil, invalid("%v", err)
	}
	request, ok := v.(object)
	if !ok {
		return nil, invalid("want a map, not a %T", v)
	}
	return request, nil
}

// whole reads a number that is none too large.
func whole(v any) (*int64, error) {
	n, ok := v.(int64)
	if !ok {
		return nil, errors.New("want a whole number")
	}
	return &n, nil
}
