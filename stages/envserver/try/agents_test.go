package try

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// charades is a game of two: the actor is shown a picture, which it can turn over, and says a word; the guesser guesses.
type charades struct{ alt string }

func (charades) Info() env.Info {
	return env.Info{Name: "charades", Version: "1", Train: 1, MaxTurns: 5}
}

func (charades) Task(env.Split, int) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }

func (c charades) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return &charade{alt: c.alt}, nil
}

type charade struct {
	alt  string
	said []string
}

func (c *charade) Agents() []string { return []string{"actor", "guesser"} }

func (c *charade) picture(data string) []env.Image {
	return []env.Image{{MIME: "image/png", Data: []byte(data), Alt: c.alt}}
}

func (c *charade) Prompt() []env.Message {
	return []env.Message{env.System("Act."), {Role: env.RoleUser, Content: "this", Images: c.picture("front")}}
}

func (c *charade) PromptOf(string) []env.Message { return []env.Message{env.System("Guess.")} }

func (c *charade) TurnOver(context.Context, struct{}) (env.ToolResult, error) {
	return env.ToolResult{Text: "turned", Images: c.picture("back")}, nil
}

func (c *charade) Reply(_ context.Context, r env.Message) (env.Turn, error) {
	c.said = append(c.said, r.Agent+":"+r.Content)
	return env.Turn{Agent: "guesser", Messages: []env.Message{env.User("clue: " + r.Content)}, Done: len(c.said) == 2}, nil
}

func (c *charade) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"turns": env.Value(float64(len(c.said)))}, Agents: map[string]env.Rewards{
		"actor": {"clear": env.Value(0.25)}, "guesser": {"right": env.Weighted(0.5, 2)},
	}}, nil
}

// A person plays every agent, and can look at images while the game lasts.
func TestPlayAgentsAndImages(t *testing.T) {
	pictures, dir := "", t.TempDir()
	t.Setenv("TMPDIR", dir)
	look := lookingReader{strings.NewReader("/TurnOver\nhot\nsun\n"), func() {
		files, _ := os.ReadDir(dir)
		for _, f := range files {
			data, err := os.ReadFile(dir + "/" + f.Name() + "/1.png")
			if err == nil {
				pictures = string(data)
			}
		}
	}}
	var out strings.Builder
	if err := (Play{Env: charades{"a sun"}, Tasks: Tasks{Split: env.Train}, EnvTimeout: time.Minute, Echo: true}).Run(t.Context(), look, &out); err != nil {
		t.Fatal(err)
	}
	text := regexp.MustCompile(`/\S*/prl-play-\d+`).ReplaceAllString(out.String(), "DIR")
	if i := strings.Index(text, "task 1 of"); i >= 0 {
		text = text[:i]
	}
	at := 0
	for _, want := range []string{"You play actor and guesser", "(actor)\nsystem     Act.", "image      a sun — DIR/1.png\nuser       this", "actor> /TurnOver", "image      a sun — DIR/2.png\ntool       turned",
		"actor> hot", "(guesser)\nsystem     Guess.\nuser       clue: hot", "guesser> sun", "reward     2", "of actor  0.25", "of guesser  1\n  right            0.5        × 2"} {
		i := strings.Index(text[at:], want)
		if i < 0 {
			t.Fatalf("%q is missing behind byte %d of\n%s", want, at, text)
		}
		at += i
	}
	if pictures != "front" {
		t.Errorf("the file of the first image has %q while it is played", pictures)
	}
	if files, _ := os.ReadDir(dir); len(files) > 0 {
		t.Errorf("%v is left behind", files)
	}
}

// lookingReader calls look when the text has been read.
type lookingReader struct {
	*strings.Reader
	look func()
}

func (r lookingReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil {
		r.look()
	}
	return n, err
}

// A model plays every agent, each in a conversation of its own, and is sent images as parts.
func TestRunAgentsAndImages(t *testing.T) {
	const front, back = `{"type":"image_url","image_url":{"url":"data:image/png;base64,ZnJvbnQ="}}`, `{"type":"image_url","image_url":{"url":"data:image/png;base64,YmFjaw=="}}`
	call := json.RawMessage(`{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"tool_calls":[{"id":"x","type":"function","function":{"name":"TurnOver","arguments":"{}"}}]}}]}`)
	for _, test := range []struct {
		name string
		alt  bool
		want []string // of the three requests' messages
	}{
		{"images", false, []string{
			`[{"role":"system","content":"Act."},{"role":"user","content":[` + front + `,{"type":"text","text":"this"}]}]`,
			`{"role":"tool","content":"turned","tool_call_id":"x"},{"role":"user","content":[` + back + `]}]`,
			`"messages":[{"role":"system","content":"Guess."},{"role":"user","content":"clue: hot"}]`,
		}},
		{"alt texts", true, []string{
			`[{"role":"system","content":"Act."},{"role":"user","content":"[image: a sun]\nthis"}]`,
			`{"role":"tool","content":"[image: a sun]\nturned","tool_call_id":"x"}]`,
			`"messages":[{"role":"system","content":"Guess."},{"role":"user","content":"clue: hot"}]`,
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			said := 0
			s := serveOpenAI(t, func(request) any {
				said++
				return []any{call, "hot", "sun"}[said-1]
			})
			r := tries(t, charades{"a sun"}, s.URL, 1)
			r.Alt = test.alt
			results, summary, err := do(t, r)
			if err != nil {
				t.Fatal(err)
			}
			asked := s.requests()
			if len(asked) != len(test.want) {
				t.Fatalf("%d requests", len(asked))
			}
			for i, want := range test.want {
				if !strings.Contains(asked[i].raw, want) {
					t.Errorf("request %d is %s, want %s", i, asked[i].raw, want)
				}
			}
			res := results[0]
			if *res.Agents["guesser"].Reward != 1 || *res.Agents["actor"].Rewards["clear"] != 0.25 || res.Messages[5].Agent != "guesser" {
				t.Errorf("%+v", res)
			}
			if !shows(summary, "of guesser 1.0000 1 agent") {
				t.Errorf("summary\n%s", summary)
			}
		})
	}
	s := serveOpenAI(t, func(request) any { return "hot" })
	r := tries(t, charades{}, s.URL, 1)
	r.Alt = true
	if results, _, err := do(t, r); err == nil || results[0].Error == nil || results[0].Error.Type != faultEnvironment || !strings.Contains(results[0].Error.Message, "no alt text") {
		t.Errorf("images without alt texts: %+v, %v", results[0], err)
	}
}

// A reply that takes longer than the environment waits ends the rollout like any limit on the policy.
func TestTurnTimeout(t *testing.T) {
	s := serveOpenAI(t, func(r request) any {
		if r.turn > 0 {
			return nil
		}
		return "hm"
	})
	e := newAdding()
	results, _, err := do(t, tries(t, impatient{e}, s.URL, 1))
	if err != nil || results[0].StopReason != stopDeadline || !results[0].Truncated || results[0].Reward == nil {
		t.Errorf("%+v, %v", results[0], err)
	}
}

type impatient struct{ *adding }

func (i impatient) Info() env.Info {
	info := i.adding.Info()
	info.TurnTimeout = time.Second
	return info
}
