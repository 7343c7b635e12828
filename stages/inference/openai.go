package inference

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prl-project/prl/stages/inference/render"
)

// An API is OpenAI's interface, and vLLM's generate, before a Speaker: requests are read and checked, and answers written,
// whole or as streams. It keeps nothing of them. Its methods without results are HTTP handlers.
type API struct {
	speaker Speaker
	log     *slog.Logger
	model   string // what replies call a policy that was asked for without a name
	choices int    // of one request, at most
	limit   string // the setting that says so, for people
	// Refused, if there is one, hears of every request for an answer that gets an error, before the client does.
	Refused func(err error)
	// probe answers a generate that asks about its prompt; nil where nothing does
	probe func(ctx context.Context, r Request, top int, speech render.Renderer) (any, error)

	id  string // of the server, in the names of replies
	ids atomic.Int64
}

// A Speaker is who answers through an API.
type Speaker interface {
	// Renderer is how it speaks, once that is known.
	Renderer(ctx context.Context) (render.Renderer, error)
	// Models lists what it has, once it can.
	Models(ctx context.Context) ([]ModelCard, error)
	// Hear takes a request and says what is to be sampled for it.
	Hear(ctx context.Context, a Ask) (Exchange, error)
}

// An Ask is what a client asks for: a conversation, or a prompt of tokens.
type Ask struct {
	Messages []render.Message
	Tools    []render.Tool
	// Request has the parameters, with defaults for those that the client left out. Of a conversation it has no tokens.
	Request Request
	// Temperature and TopP are nil where the client left them out.
	Temperature, TopP *float64
}

// An Exchange is a request as it is answered.
type Exchange struct {
	Request  Request
	Generate func(ctx context.Context, r Request) (Completion, error)
	// CallID names the next tool call of an answer; nil for a name that nothing depends on.
	CallID func() string
	// Said, if there is one, is told the answer when it is whole and the client does not know that yet: once for each choice,
	// with the tokens up to where it ends, and of a conversation with the message as the client gets it.
	Said func(c Completion, m *render.Message)
}

// NewAPI makes the interface of a speaker that gives one choice to each request. model is the name it is asked for by.
func NewAPI(s Speaker, model string, log *slog.Logger) *API {
	return newAPI(s, model, log, 1, "this server gives one")
}

func newAPI(s Speaker, model string, log *slog.Logger, choices int, limit string) *API {
	return &API{speaker: s, log: log, model: model, choices: choices, limit: limit, id: fmt.Sprintf("%08x", rand.Uint32())}
}

// Chat is POST /v1/chat/completions.
func (a *API) Chat(w http.ResponseWriter, r *http.Request) { a.serve(w, r, a.chat) }

// Generate is POST /inference/v1/generate.
func (a *API) Generate(w http.ResponseWriter, r *http.Request) { a.serve(w, r, a.generate) }

// Models is GET /v1/models.
func (a *API) Models(w http.ResponseWriter, r *http.Request) { a.serve(w, r, a.allModels) }

// Model is GET /v1/models/{name...}.
func (a *API) Model(w http.ResponseWriter, r *http.Request) { a.serve(w, r, a.oneModel) }

// serve answers with what f returns for a request and its body, as JSON or as a stream.
func (a *API) serve(w http.ResponseWriter, r *http.Request, f func(r *http.Request, body []byte) (any, error)) {
	var reply any
	body, err := readBody(w, r)
	if err == nil {
		reply, err = f(r, body)
	}
	a.reply(w, r, reply, err)
}

// Refuse answers with an error, without a look at the body.
func (a *API) Refuse(w http.ResponseWriter, r *http.Request, err error) { a.reply(w, r, nil, err) }

func (a *API) reply(w http.ResponseWriter, r *http.Request, reply any, err error) {
	if run, ok := reply.(stream); ok && err == nil {
		if err = a.streamOut(w, r, run); err == nil {
			return
		}
	}
	if r.Context().Err() != nil {
		return // nobody is there any more
	}
	status := http.StatusOK
	if err != nil {
		if a.Refused != nil && r.Method == http.MethodPost {
			a.Refused(err)
		}
		status, reply = errorOut(err)
	}
	data, err := json.Marshal(reply)
	if err != nil {
		a.log.Error("a reply cannot be encoded", "path", r.URL.Path, "error", err)
		http.Error(w, "a reply cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		a.log.Debug("a reply has no deadline", "path", r.URL.Path, "error", err)
	}
	w.WriteHeader(status)
	if _, err := w.Write(data); err != nil {
		a.log.Debug("a reply was not taken", "path", r.URL.Path, "error", err)
	}
}

// nextID names a reply.
func (a *API) nextID(kind string) string { return fmt.Sprintf("%s-%s-%d", kind, a.id, a.ids.Add(1)) }
