package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	_ "embed"
)

// endpoint is a stateless request: it has a session while it lasts.
func (s *Server) endpoint(f func(ctx context.Context, session *session, body []byte) (result, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
		if err != nil {
			answer(w, http.StatusRequestEntityTooLarge, detail(err.Error()))
			return
		}
		session, done, err := s.borrow(r.Context(), "")
		if err != nil {
			answer(w, http.StatusServiceUnavailable, detail(err.Error()))
			return
		}
		ctx, stop := during(r.Context(), session.ctx)
		reply, err := f(ctx, session, body)
		if err != nil {
			s.warn(ctx, session, err)
		}
		stop()
		done()
		var bad *invalidError
		switch {
		case errors.As(err, &bad):
			answer(w, http.StatusUnprocessableEntity, detail(bad.errors))
		case err != nil:
			answer(w, http.StatusInternalServerError, detail(err.Error()))
		default:
			answer(w, http.StatusOK, reply)
		}
	}
}

func (s *Server) reset(ctx context.Context, session *session, body []byte) (result, error) {
	args, err := readReset(body)
	if err == nil && args.Seed != nil && *args.Seed < 0 {
		err = invalid("greater_than_equal", "seed", "Input should be greater than or equal to 0")
	}
	if err != nil {
		return result{}, err
	}
	return s.resetSession(ctx, session, args)
}

// step is a whole episode of one action. Which one may stand beside the action, as in a reset.
func (s *Server) step(ctx context.Context, session *session, body []byte) (result, error) {
	var r struct {
		Action  json.RawMessage `json:"action"`
		Timeout *float64        `json:"timeout_s"`
	}
	args, err := readReset(body)
	if err == nil {
		err = decode(body, &r)
	}
	switch {
	case err != nil:
		return result{}, err
	case len(r.Action) == 0:
		return result{}, invalid("missing", "action", "Field required")
	case r.Timeout != nil && !(*r.Timeout > 0):
		return result{}, invalid("greater_than", "timeout_s", "Input should be greater than 0")
	}
	a, err := readAction(r.Action)
	if err != nil {
		return result{}, err
	}
	if r.Timeout != nil && *r.Timeout < s.Limit.Seconds() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(*r.Timeout*float64(time.Second)))
		defer cancel()
	}
	if a.kind != listTools {
		if _, err := s.resetSession(ctx, session, args); err != nil {
			return result{}, err
		}
	}
	return s.act(ctx, session, a)
}

// metadata is what people are told of the environment.
func (s *Server) metadata() map[string]any {
	var words strings.Builder
	words.WriteString("The environment " + s.info.Name + " of prl")
	if len(s.tools) > 0 {
		var names []string
		for _, t := range s.tools {
			names = append(names, t.Name)
		}
		words.WriteString(", played with the tools " + strings.Join(names, ", "))
	} else {
		words.WriteString(`, played with actions {"message": "…"}`)
	}
	words.WriteString(". reset takes split (train or eval), index and seed.")
	return map[string]any{
		"name": s.info.Name, "description": words.String(), "version": s.info.Version, "readme_content": nil, "author": nil, "documentation_url": nil,
	}
}

//go:embed schema.json
var schemas []byte

// schema has the JSON Schemas of actions, observations and states.
func (s *Server) schema() json.RawMessage { return schemas }
