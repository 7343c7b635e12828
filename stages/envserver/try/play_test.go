package try

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// played gives the output of a person who types.
func played(t *testing.T, e *adding, tasks Tasks, typed string) (string, error) {
	t.Helper()
	var out strings.Builder
	err := Play{Env: e, Tasks: tasks, EnvTimeout: time.Minute, Echo: true}.Run(t.Context(), strings.NewReader(typed), &out)
	return out.String(), err
}

func TestPlay(t *testing.T) {
	for name, c := range map[string]struct {
		tasks   Tasks
		typed   string
		said    []string // what the episodes hear
		shown   []string // in this order
		missing []string
	}{
		"a reply": {Tasks{Split: env.Train, First: 3}, "13\n", []string{"13"},
			[]string{"task 3 of train, seed 0", "system     Add.", "user       3 + 10, seed 0", "> 13", "ended      answered, replies: 1", "reward     1", "right            1\n",
				"tool             none (does not apply) × 0.5", "added            0", `task       {"a":3,"b":10}`}, []string{"mean reward"}},
		"without a line's end": {Tasks{Split: env.Train}, "10", []string{"10"}, []string{"reward     1"}, nil},
		"the next tasks": {Tasks{Split: env.Eval, First: 1, Seed: 5}, "11\r\nno\n", []string{"11", "no"},
			[]string{"task 1 of eval, seed 5", "reward     1", "task 0 of eval, seed 6", "user       0 + 10, seed 6", "reward     0", "task 1 of eval, seed 7", "2 tasks, mean reward 0.5"}, nil},
		"lines":          {Tasks{Split: env.Train}, "/text\na\n\n /quit\n.\n", []string{"a\n\n /quit"}, []string{"answered"}, nil},
		"an empty reply": {Tasks{Split: env.Train}, "\n/text\n.\n", []string{""}, []string{"nothing is said", "answered"}, nil},
		"a slash":        {Tasks{Split: env.Train}, "//quit\n", []string{"/quit"}, []string{"answered"}, nil},
		"several turns":  {Tasks{Split: env.Train}, "hm\nhm\n10\n", []string{"hm", "hm", "10"}, []string{"user       well?", "replies: 3"}, nil},
		"a limit":        {Tasks{Split: env.Train}, "hm\nhm\nhm\nhm\n", []string{"hm", "hm", "hm", "hm"}, []string{"cut by a limit", "max_turns", "task 1 of"}, nil},
		"tools": {Tasks{Split: env.Train}, "/Add a=1 b=2\n/add {\"a\":1,\"b\":5}\n/tool Add b=4 a=4 note=\" so\"\n10\n", []string{"10"},
			[]string{"/Add a=integer b=integer [note=string]", "Add numbers.", "a: the first", "tool       3\n", "tool       6\n", "tool       8 so\n", "reward     1.5", "added            3"}, nil},
		"a tool of one argument": {Tasks{Split: env.Train}, "/Negate 5\n/Negate n=6\n/Shout so be it\n", nil, []string{"tool       -5", "tool       -6", "tool       SO BE IT!"}, nil},
		"a call that is wrong": {Tasks{Split: env.Train}, "/Add a=x b=1\n/Add 5\n/Subtract a=1\n", nil,
			[]string{"error: arguments of Add: ", `(not called: "5" is no argument`, `there is no command or tool "Subtract"`}, nil},
		"commands":                   {Tasks{Split: env.Train}, "/help\n/task\n/tools\n10\n", []string{"10"}, []string{"> /help\nA line is a reply", `{"a":0,"b":10}`, `"required":["a","b"]`, "answered"}, nil},
		"next":                       {Tasks{Split: env.Train}, "hm\n/next\n/next\n12\n", []string{"hm", "12"}, []string{"left before its end", "task 1 of", "left before its end", "task 2 of", "answered"}, nil},
		"quit at once":               {Tasks{Split: env.Train}, "/quit\nhm\n", nil, []string{"0 + 10"}, []string{"reward", "task 1"}},
		"quit later":                 {Tasks{Split: env.Train}, "hm\n/quit\n10\n", []string{"hm"}, []string{"replies: 1", "reward     0"}, []string{"task 1"}},
		"the input ends among lines": {Tasks{Split: env.Train}, "hm\n/text\nabc\n", []string{"hm"}, []string{"left before its end"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			e := newAdding()
			out, err := played(t, e, c.tasks, c.typed)
			if err != nil {
				t.Fatal(err)
			}
			var said []string
			for _, m := range e.replies {
				said = append(said, m.Content)
			}
			if strings.Join(said, "|") != strings.Join(c.said, "|") {
				t.Errorf("the episode heard %q, want %q", said, c.said)
			}
			rest := out
			for _, want := range c.shown {
				_, behind, ok := strings.Cut(rest, want)
				if !ok {
					t.Fatalf("%q is missing in\n%s", want, out)
				}
				rest = behind
			}
			for _, not := range c.missing {
				if strings.Contains(out, not) {
					t.Errorf("%q in\n%s", not, out)
				}
			}
			if begun := strings.Count(out, "── adding"); e.closed != begun {
				t.Errorf("%d of %d episodes were closed", e.closed, begun)
			}
		})
	}
}

func TestPlayRefuses(t *testing.T) {
	e := newAdding()
	e.info.Eval = 0
	for want, tasks := range map[string]Tasks{
		"0 to 4 (--task)":            {Split: env.Train, First: 5},
		"no task -1":                 {Split: env.Train, First: -1},
		"no tasks in split \"eval\"": {Split: env.Eval},
		"no split \"test\"":          {Split: "test"},
	} {
		if _, err := played(t, e, tasks, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", tasks, err, want)
		}
	}
}

// A panic of the environment ends the play, and says where it was.
func TestPlayPanic(t *testing.T) {
	e := newAdding()
	e.panics = 1
	out, err := played(t, e, Tasks{Split: env.Train}, "1\n2\n3\n")
	if err == nil || !strings.Contains(err.Error(), "a sum too many") || !strings.Contains(out, "(*sum).Reply") || e.closed != 2 {
		t.Errorf("error %v, %d closed, output\n%s", err, e.closed, out)
	}
}

// A signal ends the play while nobody types.
func TestPlayStops(t *testing.T) {
	e := newAdding()
	in, w := io.Pipe()
	defer w.Close()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Play{Env: e, Tasks: Tasks{Split: env.Train}, EnvTimeout: time.Minute}.Run(ctx, in, io.Discard)
	}()
	if _, err := io.WriteString(w, "hm\n"); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil || e.closed != 1 {
			t.Errorf("error %v, %d closed", err, e.closed)
		}
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

// An input that fails is told from one that ends.
func TestPlayBrokenInput(t *testing.T) {
	broken := errors.New("the line is cut")
	r, w := io.Pipe()
	w.CloseWithError(broken)
	err := Play{Env: newAdding(), Tasks: Tasks{Split: env.Train}, EnvTimeout: time.Minute}.Run(t.Context(), r, io.Discard)
	if !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
}
