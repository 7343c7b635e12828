package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

// toy is an environment with a switch for each way to break the contract.
type toy struct {
	broken string
	calls  *atomic.Int64
}

func (e toy) is(broken string) bool { return e.broken == broken }

func (e toy) Info() env.Info {
	i := env.Info{Name: "toy", Version: "1", Train: 5, Eval: 5, Disjoint: true, MaxTurns: 3}
	switch e.broken {
	case "name":
		i.Name = "Toy!"
	case "turns":
		i.MaxTurns = 0
	case "info":
		i.Train = int(e.calls.Add(1))
	}
	return i
}

func (e toy) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(e.Info(), split, index); err != nil && !e.is("index") {
		return nil, err
	}
	switch {
	case e.is("task changes"):
		index = int(e.calls.Add(1))
	case e.is("array"):
		return json.RawMessage(`[1]`), nil
	case e.is("overlap"):
		split = ""
	}
	return fmt.Appendf(nil, `{"n":"%s%d"}`, split, index), nil
}

func (e toy) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	if e.is("panics on bad task") && len(task) < 2 {
		panic(task)
	}
	fields := map[string]any{}
	if err := json.Unmarshal(task, &fields); err != nil {
		return nil, err
	}
	if e.is("strict task") && len(fields) > 1 {
		return nil, errors.New("unknown field")
	}
	return &episode{toy: e}, nil
}

type episode struct {
	toy
	turns int
}

func (e *episode) Prompt() []env.Message { return []env.Message{env.User("?")} }

func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.turns++
	switch {
	case e.is("error on nonsense") && reply.Content == "\xff\xfe":
		return env.Turn{}, errors.New("bad move")
	case e.is("panics on nonsense") && reply.Content == "":
		return env.Turn{}, errors.New(string(reply.Content[0]))
	case e.is("silent"):
		return env.Turn{}, nil
	case e.is("role"):
		return env.Turn{Messages: []env.Message{{Role: "oracle"}}}, nil
	case e.is("random"):
		return env.Turn{Messages: []env.Message{env.User(fmt.Sprint(e.calls.Add(1)))}}, nil
	}
	return env.Turn{Messages: []env.Message{env.User("?")}, Done: e.turns == 2}, nil
}

func (e *episode) Score(context.Context) (env.Score, error) {
	value := 1.0
	switch {
	case e.is("NaN"):
		value = math.NaN()
	case e.is("cut") && e.turns == 0:
		return env.Score{}, errors.New("no reply")
	}
	return env.Score{Rewards: env.Rewards{"r": env.Value(value)}}, nil
}

func (e toy) Baselines(env.Split) map[string]float64 {
	switch e.broken {
	case "baseline":
		return map[string]float64{"random": math.Inf(1)}
	case "baseline changes":
		return map[string]float64{"random": float64(e.calls.Add(1))}
	}
	return map[string]float64{"random": 0}
}

// Each break is found by the check that is there for it, and the whole toy passes all.
func TestChecksFindWhatIsBroken(t *testing.T) {
	for broken, by := range map[string]string{
		"name": "Info", "turns": "Info", "info": "Info",
		"task changes": "Tasks", "array": "Tasks", "index": "Tasks",
		"overlap":            "Disjoint",
		"panics on bad task": "BadTasks",
		"error on nonsense":  "Episodes", "panics on nonsense": "Episodes", "silent": "Episodes", "role": "Episodes",
		"random": "Episodes", "NaN": "Episodes",
		"cut":         "Cut",
		"strict task": "UnknownFields",
		"baseline":    "Baselines", "baseline changes": "Baselines",
		"": "",
	} {
		e := toy{broken: broken, calls: &atomic.Int64{}}
		found := map[string]error{}
		for _, c := range checks {
			if err := c.check(e, []Player{OneOf("a", "b"), Noise}); err != nil {
				found[c.name] = err
			}
		}
		if by == "" && len(found) > 0 {
			t.Errorf("the toy is whole, yet: %v", found)
		}
		if by != "" && found[by] == nil {
			t.Errorf("%s: %s does not find it; found: %v", broken, by, found)
		}
	}
}

// sharing counts the turns of all episodes together.
type sharing struct{ toy }

func (e sharing) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	ep, err := e.toy.Start(ctx, task, seed)
	return sharer{ep, e.calls}, err
}

type sharer struct {
	env.Episode
	turns *atomic.Int64
}

func (e sharer) Reply(context.Context, env.Message) (env.Turn, error) {
	return env.Turn{Messages: []env.Message{env.User(fmt.Sprint(e.turns.Add(1)))}}, nil
}

func TestConcurrentFindsSharedState(t *testing.T) {
	if err := checkConcurrent(sharing{toy{calls: &atomic.Int64{}}}, []Player{OneOf("a")}); err == nil {
		t.Error("episodes that share state pass")
	}
}

func TestMeanReportsTheTask(t *testing.T) {
	_, err := Mean(context.Background(), toy{broken: "NaN", calls: &atomic.Int64{}}, env.Train, 3, OneOf("a"))
	if err == nil || !strings.Contains(err.Error(), "task 0") {
		t.Error(err)
	}
}

// closing counts what is open.
type closing struct {
	env.Episode
	open *int
}

func (c closing) Close() error { *c.open--; return io.ErrClosedPipe }

type closer struct {
	toy
	open *int
}

func (c closer) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	*c.open++
	ep, err := c.toy.Start(ctx, task, seed)
	return closing{ep, c.open}, err
}

func TestPlayCloses(t *testing.T) {
	for _, broken := range []string{"", "NaN", "silent"} {
		open := 0
		_, _ = Play(context.Background(), closer{toy{broken, &atomic.Int64{}}, &open}, json.RawMessage(`{}`), 1, OneOf("a"))
		if open != 0 {
			t.Errorf("%q: %d episodes are left open", broken, open)
		}
	}
}
