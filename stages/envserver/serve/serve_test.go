package serve

import (
	"context"
	"encoding/json"
	"errors"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

type counted struct{ train, eval int }

func (c counted) Info() env.Info {
	return env.Info{Name: "counted", Version: "1", Train: c.train, Eval: c.eval, MaxTurns: 1}
}

func (counted) Task(env.Split, int) (json.RawMessage, error) { return json.RawMessage(`{}`), nil }

func (counted) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return nil, errors.New("not played")
}

// Which task a client gets.
func TestChoose(t *testing.T) {
	train, eval, other := "train", "eval", "test"
	n := func(v int64) *int64 { return &v }
	for _, c := range []struct {
		of    counted
		pick  Pick
		split env.Split
		index int
		wrong string
	}{
		{counted{5, 2}, Pick{Seed: n(0)}, env.Train, 0, ""},
		{counted{5, 2}, Pick{Seed: n(7)}, env.Train, 2, ""},
		{counted{5, 2}, Pick{Seed: n(-1)}, env.Train, 4, ""},
		{counted{5, 2}, Pick{Split: &eval, Seed: n(3)}, env.Eval, 1, ""},
		{counted{5, 2}, Pick{Split: &eval, Index: n(1), Seed: n(4)}, env.Eval, 1, ""},
		{counted{0, 2}, Pick{Index: n(1)}, env.Eval, 1, ""},
		{counted{0, 2}, Pick{Split: &train}, "", 0, "split"},
		{counted{5, 2}, Pick{Split: &other}, "", 0, "split"},
		{counted{5, 2}, Pick{Index: n(5)}, "", 0, "index"},
		{counted{5, 2}, Pick{Index: n(-1)}, "", 0, "index"},
	} {
		got, err := Served{Env: c.of}.Choose(c.pick)
		var bad *BadPick
		switch {
		case c.wrong != "":
			if !errors.As(err, &bad) || bad.Field != c.wrong {
				t.Errorf("%+v: %v, want %s to be wrong", c.pick, err, c.wrong)
			}
		case err != nil || got.Split != c.split || got.Index != c.index || c.pick.Seed != nil && got.Seed != *c.pick.Seed:
			t.Errorf("%+v: %+v, %v", c.pick, got, err)
		}
	}
	if _, err := (Served{Env: counted{}}).Choose(Pick{}); !errors.Is(err, ErrNoTasks) {
		t.Errorf("no tasks: %v", err)
	}
}
