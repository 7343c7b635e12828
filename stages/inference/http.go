package inference

import (
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
)

// Bounds of the body of a request. The time ends with the body: net/http lifts it once the body has been read.
const (
	maxBodyBytes = 16 << 20
	bodyTimeout  = time.Minute
	// maxValues bounds the objects, lists and fields of a body, each of which takes up to a hundred times its bytes when it is read.
	maxValues = 1 << 18
)

// errorReply is OpenAI's error object.
type errorReply struct {
	Error struct {
		Message string  `json:"message"`
		Type    string  `json:"type"`
		Param   *string `json:"param"`
		Code    string  `json:"code"`
	} `json:"error"`
}

// handler is the HTTP side of the server.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+pathModels, s.authorized(s.api.Models))
	mux.Handle("GET "+pathModels+"/{name...}", s.authorized(s.api.Model))
	mux.Handle("POST /v1/chat/completions", s.authorized(s.api.Chat))
	mux.Handle("POST /v1/completions", s.endpoint(s.handleCompletions))
	mux.Handle("POST "+pathGenerate, s.authorized(s.api.Generate))
	mux.Handle("POST /tokenize", s.endpoint(s.handleTokenize))
	mux.Handle("POST /detokenize", s.endpoint(s.handleDetokenize))
	for _, path := range []string{"/health", "/ping"} {
		mux.HandleFunc(path, s.handleHealth)
	}
	mux.HandleFunc("GET /version", handleVersion)
	mux.Handle("/", s.endpoint(func(r *http.Request, _ []byte) (any, error) {
		return nil, refuse(http.StatusNotFound, CodeInvalid, "no endpoint %s %s", r.Method, r.URL.Path)
	}))
	return mux
}

// root is the handler with the path of the run's own besides, which environment servers of a fleet ask at.
func (s *Server) root() http.Handler {
	mux := http.NewServeMux()
	path := runsPath + s.rt.Run.Name
	mux.Handle(path+"/", http.StripPrefix(path, s.inner))
	mux.Handle("/", s.inner)
	return mux
}

func httpServer(h http.Handler, cfg Config) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: bodyTimeout,
		WriteTimeout: time.Duration(cfg.Timeout) + time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
}

// writeJSON answers with v.
func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

// authorized lets only those through who have the token.
func (s *Server) authorized(f http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := s.authorize(r); err != nil {
			s.api.Refuse(w, r, err)
			return
		}
		if s.rt.Tracing != nil {
			r = r.WithContext(tracing.Extract(r.Context(), r.Header))
		}
		f(w, r)
	})
}

// endpoint answers with what f returns for a request and its body.
func (s *Server) endpoint(f func(r *http.Request, body []byte) (any, error)) http.Handler {
	return s.authorized(func(w http.ResponseWriter, r *http.Request) { s.api.serve(w, r, f) })
}

func (s *Server) authorize(r *http.Request) error {
	if s.cfg.Token.Reveal() == "" {
		return nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || subtle.ConstantTimeCompare([]byte(token), []byte(s.cfg.Token.Reveal())) != 1 {
		return refuse(http.StatusUnauthorized, CodeUnauthorized, "send the server's token: Authorization: Bearer <token>")
	}
	return nil
}

// readBody reads the body of a request.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, refuse(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body has over %d bytes", tooLarge.Limit)
	}
	if err != nil {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "read the body: %v", err)
	}
	return data, nil
}

// decodeBody decodes a body into v.
func decodeBody(body []byte, v any) error {
	if n := values(body); n > maxValues {
		return refuse(http.StatusRequestEntityTooLarge, CodeTooLarge, "the body has %d objects, lists and fields: at most %d", n, maxValues)
	}
	err := json.Unmarshal(body, v)
	var own *Error
	if err == nil || errors.As(err, &own) {
		return err
	}
	return refuse(http.StatusBadRequest, CodeInvalid, "the body is not the JSON that is expected: %v", err)
}

// values counts the objects, lists and fields of JSON.
func values(body []byte) (n int) {
	text := false
	for i := 0; i < len(body); i++ {
		switch c := body[i]; {
		case c == '"':
			text = !text
		case text && c == '\\':
			i++
		case !text && (c == '{' || c == '[' || c == ':'):
			n++
		}
	}
	return n
}

// errorOut is the reply for an error.
func errorOut(err error) (int, errorReply) {
	e := &Error{Status: http.StatusInternalServerError, Code: CodeInternal}
	errors.As(err, &e)
	var out errorReply
	out.Error.Message, out.Error.Code, out.Error.Type = err.Error(), e.Code, "server_error"
	if e.Cause == nil && e.Message != "" {
		out.Error.Message = e.Message
	}
	if e.Status < http.StatusInternalServerError {
		out.Error.Type = "invalid_request_error"
	}
	return e.Status, out
}
