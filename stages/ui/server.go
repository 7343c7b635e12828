package ui

import (
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strings"

	"github.com/prl-project/prl/stages/ui/history"
)

//go:embed web
var web embed.FS

// policy lets the page use what the binary serves and nothing else: no script, style or picture of another origin, none that
// stands in the page itself, no frame around it.
const policy = "default-src 'self'; img-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"

// pages are the addresses of the page; which of its views it shows is up to its script.
var pages = []string{"/", "/rollouts", "/rollout/{id}", "/steps", "/step/{step}", "/sql"}

func (u *UI) handler() http.Handler {
	mux := http.NewServeMux()
	files, err := fs.Sub(web, "web")
	if err != nil {
		panic(err) // the folder is in the binary
	}
	for _, p := range pages {
		if p == "/" {
			p = "/{$}"
		}
		mux.HandleFunc("GET "+p, func(w http.ResponseWriter, r *http.Request) { http.ServeFileFS(w, r, files, "index.html") })
	}
	mux.Handle("GET /static/", http.StripPrefix("/static/", http.FileServerFS(files)))
	for path, answer := range map[string]func(*http.Request) (any, error){
		"/api/run": u.getRun, "/api/runs": u.getRuns, "/api/flow": u.getFlow, "/api/now": u.getNow,
		"/api/rollouts": u.getRollouts, "/api/rollouts/{id}": u.getRollout, "/api/rollouts/{id}/tokens": u.getRolloutTokens,
		"/api/steps/{step}": u.getStep, "/api/steps/{step}/tokens": u.getStepTokens, "/api/sql": u.getQuestions,
	} {
		mux.HandleFunc("GET "+path, answered(answer))
	}
	mux.HandleFunc("POST /api/sql", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxQuery+1))
		answered(func(*http.Request) (any, error) {
			if err != nil {
				return nil, badRequest("read the query: %w; it may have %d bytes", err, maxQuery)
			}
			patient(w)
			return u.ask(r, body)
		})(w, r)
	})
	mux.HandleFunc("GET /api/rollouts/{id}/images/{node}/{image}", u.serveImage)
	mux.HandleFunc("GET /api/events", u.events)
	mux.HandleFunc("GET /runbook/{fault}", serveRunbook)
	return u.guard(mux)
}

// guard lets nobody else in, and tells the browser what the page may do.
func (u *UI) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-cache")
		if u.enter(w, r) {
			return
		}
		next.ServeHTTP(w, r)
	})
}

const cookie = "prl_ui"

// enter answers a request that is not let in, or that brings the token of a browser.
func (u *UI) enter(w http.ResponseWriter, r *http.Request) (answered bool) {
	token := u.cfg.Token.Reveal()
	if token == "" {
		// A page of elsewhere could have its own name resolve to this machine, and read the run through its reader's browser.
		if host := hostOf(r.Host); !loopback(host) {
			refuse(w, http.StatusMisdirectedRequest, fmt.Errorf("the page is at localhost, not at %q", host))
			return true
		}
		return false
	}
	same := func(s string) bool { return subtle.ConstantTimeCompare([]byte(s), []byte(token)) == 1 }
	if c, err := r.Cookie(cookie); err == nil && same(c.Value) {
		return false
	}
	if given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok && same(given) {
		return false
	}
	if r.Method == http.MethodGet && same(r.URL.Query().Get("token")) {
		http.SetCookie(w, &http.Cookie{Name: cookie, Value: token, Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode})
		q := r.URL.Query()
		q.Del("token")
		r.URL.RawQuery = q.Encode()
		http.Redirect(w, r, r.URL.RequestURI(), http.StatusSeeOther)
		return true
	}
	w.Header().Set("WWW-Authenticate", "Bearer")
	refuse(w, http.StatusUnauthorized, errors.New("the page wants its token: open /?token=… once, or send it as bearer token"))
	return true
}

func hostOf(hostport string) string {
	if host, _, err := net.SplitHostPort(hostport); err == nil {
		return host
	}
	return strings.Trim(hostport, "[]")
}

// A problem is an error that the reader made, or that tells what to do.
type problem struct {
	status int
	error
}

func (p problem) Unwrap() error { return p.error }

func badRequest(format string, args ...any) error {
	return problem{http.StatusBadRequest, fmt.Errorf(format, args...)}
}

func notFound(format string, args ...any) error {
	return problem{http.StatusNotFound, fmt.Errorf(format, args...)}
}

// answered writes what a function gives as JSON.
func answered(answer func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := answer(r)
		if err == nil {
			var body []byte
			if body, err = json.Marshal(v); err == nil {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(body) // the reader may be gone
				return
			}
		}
		status := http.StatusInternalServerError
		var p problem
		switch {
		case errors.As(err, &p):
			status = p.status
		case errors.Is(err, history.ErrNotThere):
			status = http.StatusNotFound
		}
		refuse(w, status, err)
	}
}

func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	body, _ := json.Marshal(map[string]string{"error": err.Error()}) // strings always can be
	_, _ = w.Write(body)
}
