package judge

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

// standIn is a judge that gives an answer ten points for repeating all words of the prompt, and fails on demand.
type standIn struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []request
	tokens []string
	fail   []func(w http.ResponseWriter, r *http.Request) // what happens to the next requests instead of an answer
}

func newStandIn(t *testing.T) *standIn {
	t.Helper()
	s := &standIn{}
	s.Server = httptest.NewServer(s)
	t.Cleanup(s.Close)
	return s
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	var asked request
	if err := json.Unmarshal(body, &asked); err != nil || r.URL.Path != "/v1/chat/completions" || len(asked.Messages) != 1 {
		http.Error(w, "bad request", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	s.asked = append(s.asked, asked)
	s.tokens = append(s.tokens, r.Header.Get("Authorization"))
	var fail func(http.ResponseWriter, *http.Request)
	if len(s.fail) > 0 {
		fail, s.fail = s.fail[0], s.fail[1:]
	}
	s.mu.Unlock()
	if fail != nil {
		fail(w, r)
		return
	}
	say(w, fmt.Sprintf("It has some of the words. Score: 1\nNo,\nscore: %.3f", mark(asked.Messages[0].Content)))
}

// mark is ten times the share of the prompt's words that the answer has.
func mark(question string) float64 {
	_, rest, _ := strings.Cut(question, "<<<asked\n")
	prompt, rest, _ := strings.Cut(rest, "\nasked>>>")
	_, rest, _ = strings.Cut(rest, "<<<answer\n")
	answer, _, _ := strings.Cut(rest, "\nanswer>>>")
	found, words := 0.0, strings.Fields(prompt)
	for _, word := range words {
		found += env.Bool(strings.Contains(" "+answer+" ", " "+word+" "))
	}
	return 10 * found / float64(len(words))
}

func say(w http.ResponseWriter, text string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"choices": []any{map[string]any{"message": message{"assistant", text}}}})
}

func (s *standIn) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.asked)
}

func open(t *testing.T, s *standIn, change func(*Config)) *Judge {
	t.Helper()
	cfg := Defaults()
	cfg.URL, cfg.PauseS = s.URL+"/v1", 0.001
	change(&cfg)
	j, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func reference(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
	return env.Assistant(conversation[0].Content)
}

func random(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
	b := make([]byte, 40)
	for i := range b {
		b[i] = "bcdfghjklmnpqrstvwxyz "[rng.IntN(22)]
	}
	return env.Assistant(string(b))
}

const comet = `{"prompt":"what is a comet","reference":"ice"}`

func score(t *testing.T, j *Judge, answer string) (float64, error) {
	t.Helper()
	r, err := envtest.Play(t.Context(), j, json.RawMessage(comet), 0, envtest.OneOf(answer))
	if err != nil {
		return 0, err
	}
	return *r.Score.Rewards["judged"].Value, nil
}

func TestConformance(t *testing.T) {
	envtest.Run(t, open(t, newStandIn(t), func(*Config) {}), random, reference)
}

func TestTable(t *testing.T) {
	j := open(t, newStandIn(t), func(*Config) {})
	envtest.Row(t, "../../README.md", "`judge`", j, j.Info().Eval, reference, random)
}

func TestPlayers(t *testing.T) {
	j := open(t, newStandIn(t), func(*Config) {})
	for name, test := range map[string]struct {
		player   envtest.Player
		from, to float64
	}{"reference": {reference, 1, 1}, "random": {random, 0, 0.05}} {
		got, err := envtest.Mean(t.Context(), j, env.Train, j.Info().Train, test.player)
		if err != nil || got < test.from || got > test.to {
			t.Errorf("%s: %v, %v; want %v to %v", name, got, err, test.from, test.to)
		}
	}
}

func TestQuestion(t *testing.T) {
	s := newStandIn(t)
	j := open(t, s, func(c *Config) {
		c.Template, c.MaxAnswer, c.Temperature, c.MaxTokens, c.Model = "P {prompt} R {reference} A {answer}", 20, 0.5, 7, "m"
	})
	if _, err := score(t, j, " see {prompt} \xff and much more"); err != nil {
		t.Fatal(err)
	}
	got := s.asked[0]
	want := request{Model: "m", Temperature: 0.5, MaxTokens: 7, Messages: []message{{"user", "P what is a comet R ice A see {prompt} \uFFFD and [cut]"}}}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("asked %+v, want %+v", got, want)
	}
}

func TestNothingIsNotAsked(t *testing.T) {
	s := newStandIn(t)
	j := open(t, s, func(*Config) {})
	got, err := score(t, j, " \n")
	if err != nil || got != 0 || s.requests() != 0 {
		t.Errorf("%v %v, %d requests", got, err, s.requests())
	}
}

// Failures of each kind are tried again, and what comes of it is the score.
func TestInvariant_FailuresAreTriedAgain(t *testing.T) {
	for name, fail := range map[string]func(w http.ResponseWriter, r *http.Request){
		"503":       func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "full", http.StatusServiceUnavailable) },
		"429":       func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "slow", http.StatusTooManyRequests) },
		"cut":       func(w http.ResponseWriter, _ *http.Request) { panic(http.ErrAbortHandler) },
		"late":      func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"garbage":   func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) },
		"no choice": func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) },
		"no score":  func(w http.ResponseWriter, _ *http.Request) { say(w, "I would rather not.") },
		"too much":  func(w http.ResponseWriter, _ *http.Request) { say(w, "Score: 11") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStandIn(t)
			s.fail = append(s.fail, fail, fail)
			timeout := 20.
			if name == "late" {
				timeout = 0.2
			}
			j := open(t, s, func(c *Config) { c.TimeoutS = timeout })
			got, err := score(t, j, "a comet")
			if err != nil || got != 0.5 || s.requests() != 3 {
				t.Errorf("%v, %v after %d requests; want 0.5 after 3", got, err, s.requests())
			}
			if again, err := score(t, j, "a comet"); err != nil || again != 0.5 || s.requests() != 3 {
				t.Errorf("asked again: %v, %v, %d requests", again, err, s.requests())
			}
		})
	}
}

// What does not get better is an error of the infrastructure, not a reward of 0; and not tried again where that is no use.
func TestInvariant_NoScoreIsAnError(t *testing.T) {
	for name, test := range map[string]struct {
		fail     func(w http.ResponseWriter, r *http.Request)
		requests int
		want     string
	}{
		"500":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "broken", http.StatusInternalServerError) }, 3, "try 3 of 3: HTTP 500: broken"},
		"401":      {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "who?", http.StatusUnauthorized) }, 1, "try 1 of 3: HTTP 401: who?"},
		"no score": {func(w http.ResponseWriter, _ *http.Request) { say(w, "Well.") }, 3, `no score like`},
	} {
		s := newStandIn(t)
		s.fail = append(s.fail, test.fail, test.fail, test.fail, test.fail)
		j := open(t, s, func(c *Config) { c.Retries = 2 })
		if got, err := score(t, j, "a comet"); err == nil || !strings.Contains(err.Error(), test.want) || s.requests() != test.requests {
			t.Errorf("%s: %v, %v after %d requests; want %q after %d", name, got, err, s.requests(), test.want, test.requests)
		}
	}
	s := newStandIn(t)
	s.Close()
	if got, err := score(t, open(t, s, func(c *Config) { c.Retries = 1 }), "a comet"); err == nil || !strings.Contains(err.Error(), "try 2 of 2") {
		t.Errorf("nobody there: %v, %v", got, err)
	}
}

func TestRetryAfter(t *testing.T) {
	s := newStandIn(t)
	s.fail = append(s.fail, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusTooManyRequests)
	})
	j := open(t, s, func(*Config) {})
	_, err := j.client.ask(t.Context(), []byte(`{"messages":[{}]}`))
	if r, ok := err.(*refusal); !ok || r.after.Seconds() != 600 || !r.temporary() {
		t.Errorf("%v", err)
	}
}

func TestCacheIsByContent(t *testing.T) {
	s := newStandIn(t)
	file := filepath.Join(t.TempDir(), "cache.jsonl")
	j := open(t, s, func(c *Config) { c.CacheFile = file })
	for _, answer := range []string{"a", "a", "b", "a"} {
		if _, err := score(t, j, answer); err != nil {
			t.Fatal(err)
		}
	}
	if s.requests() != 2 {
		t.Errorf("%d requests for two answers", s.requests())
	}
	if _, err := score(t, open(t, s, func(c *Config) { c.CacheFile = file }), "b"); err != nil || s.requests() != 2 {
		t.Errorf("after a restart: %v, %d requests", err, s.requests())
	}
	for _, change := range []func(*Config){
		func(c *Config) { c.Model = "other" },
		func(c *Config) { c.Temperature = 1 },
		func(c *Config) { c.Template = "{answer}" },
		func(c *Config) { c.Pattern = `SCORE=(\d)` }, // what was said does not fit it
	} {
		before := s.requests()
		j := open(t, s, func(c *Config) { c.CacheFile, c.Retries = file, 0; change(c) })
		if _, _ = score(t, j, "b"); s.requests() != before+1 {
			t.Errorf("%+v: %d requests more, want 1", j.cfg, s.requests()-before)
		}
	}
}

func TestToken(t *testing.T) {
	s := newStandIn(t)
	file := filepath.Join(t.TempDir(), "token")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("first\n")
	j := open(t, s, func(c *Config) { c.TokenFile, c.Retries = file, 0 })
	_, _ = score(t, j, "a")
	write("second")
	_, _ = score(t, j, "b")
	t.Setenv("PRL_TEST_JUDGE", "third")
	_, _ = score(t, open(t, s, func(c *Config) { c.TokenEnv = "PRL_TEST_JUDGE" }), "a")
	_, _ = score(t, open(t, s, func(*Config) {}), "a")
	if got := fmt.Sprintf("%q", s.tokens); got != `["Bearer first" "Bearer second" "Bearer third" ""]` {
		t.Errorf("%s", got)
	}
	// No error has it in it.
	write("hush-hush")
	s.fail = append(s.fail, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) })
	if _, err := score(t, j, "c"); err == nil || strings.Contains(err.Error(), "hush-hush") {
		t.Errorf("%v", err)
	}
	write("")
	for _, cfg := range []Config{{TokenFile: file}, {TokenFile: file + "x"}, {TokenEnv: "PRL_TEST_NOT_SET"}} {
		if _, err := cfg.bearer().Token(); err == nil {
			t.Errorf("%+v has a token", cfg)
		}
	}
	var cfg Config
	if err := json.Unmarshal([]byte(`{"token":"hush-hush"}`), &cfg); err == nil || strings.Contains(err.Error(), "hush-hush") || !strings.Contains(err.Error(), "token_file") {
		t.Errorf("a token in the configuration: %v", err)
	}
}

func TestFile(t *testing.T) {
	const good = `{"prompt":"p","reference":null}`
	for _, test := range []struct{ text, want string }{
		{good + "\n[]", ":2: not a JSON object"},
		{`{"reference":"r"}`, `:1: field "prompt"`},
		{"\n" + `{"prompt":"p","reference":1}`, `:2: field "reference"`},
		{`{"prompt":"` + strings.Repeat("x", env.LongestLine) + `"}`, ":1: longer"},
		{good + "\n" + good, "eval_percent"},
	} {
		cfg := Defaults()
		cfg.File = filepath.Join(t.TempDir(), "prompts.jsonl")
		if err := os.WriteFile(cfg.File, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(cfg)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%.100q: %v, want %q", test.text, err, test.want)
		}
	}
}

func TestValidate(t *testing.T) {
	for option, change := range map[string]func(*Config){
		"file":                func(c *Config) { c.File = "nowhere.jsonl" },
		"prompt_field":        func(c *Config) { c.PromptField = "reference" },
		"eval_percent":        func(c *Config) { c.EvalPercent = 51 },
		"url":                 func(c *Config) { c.URL = "localhost:8000" },
		"without a password":  func(c *Config) { c.URL = "http://a:b@localhost" },
		"leave one out":       func(c *Config) { c.TokenFile, c.TokenEnv = "a", "B" },
		"cleartext":           func(c *Config) { c.URL, c.TokenEnv = "http://judge.example/v1", "PATH" },
		"token_env":           func(c *Config) { c.TokenEnv = "PRL_TEST_NOT_SET" },
		"model":               func(c *Config) { c.Model = "" },
		"template":            func(c *Config) { c.Template = "{prompt}" },
		"pattern":             func(c *Config) { c.Pattern = `\d+` },
		"missing closing":     func(c *Config) { c.Pattern = `(\d+` },
		"max_score":           func(c *Config) { c.MaxScore = 0 },
		"temperature":         func(c *Config) { c.Temperature = 3 },
		"max_tokens":          func(c *Config) { c.MaxTokens = 0 },
		"max_answer":          func(c *Config) { c.MaxAnswer = 0 },
		"parallel":            func(c *Config) { c.Parallel = 0 },
		"requests_per_minute": func(c *Config) { c.RequestsPerMinute = -1 },
		"timeout_s":           func(c *Config) { c.TimeoutS = 0 },
		"retries":             func(c *Config) { c.Retries = -1 },
		"pause_s":             func(c *Config) { c.PauseS = 0 },
		"cache_entries":       func(c *Config) { c.CacheEntries = -1 },
		"cache_file":          func(c *Config) { c.CacheFile, c.CacheEntries = "x", 0 },
	} {
		cfg := Defaults()
		change(&cfg)
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), option) {
			t.Errorf("wrong %s: %v", option, err)
		}
	}
	cfg := Defaults()
	cfg.URL, cfg.TokenEnv, cfg.Cleartext = "http://judge.example/v1", "PATH", true
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
