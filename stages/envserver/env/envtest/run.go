package envtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"regexp"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	sampledTasks = 500    // of a split, for checks of single tasks
	sampledSeeds = 40     // episodes per player and split
	maxTasks     = 200000 // of a split, for the check that splits are disjoint
	parallel     = 8      // episodes side by side
)

// Run holds an environment to the contract of package env. It plays [Noise], [Typed] and the given players; a random legal player
// should be among them, so that the game is reached. Run it with the race detector, too.
func Run(t *testing.T, e env.Environment, players ...Player) {
	t.Helper()
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if err := c.check(e, append(players[:len(players):len(players)], Noise, Typed)); err != nil {
				t.Error(err)
			}
		})
	}
}

// checks are what Run does. Each returns what it finds broken.
var checks = []struct {
	name  string
	check func(e env.Environment, players []Player) error
}{
	{"Info", checkInfo},
	{"Tasks", checkTasks},
	{"Disjoint", checkDisjoint},
	{"BadTasks", checkBadTasks},
	{"Episodes", checkEpisodes},
	{"Cut", checkCut},
	{"Calls", checkCalls},
	{"UnknownFields", checkUnknownFields},
	{"Concurrent", checkConcurrent},
	{"Baselines", checkBaselines},
}

var (
	splits = []env.Split{env.Train, env.Eval}
	name   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

func checkInfo(e env.Environment, _ []Player) error {
	i := e.Info()
	switch {
	case !name.MatchString(i.Name):
		return fmt.Errorf("name %q, want lower case letters, digits and dashes", i.Name)
	case i.Version == "":
		return errors.New("no version")
	case i.MaxTurns < 1:
		return fmt.Errorf("MaxTurns %d, want at least 1", i.MaxTurns)
	case i.Train < 1 || i.Eval < 0:
		return fmt.Errorf("%d training and %d eval tasks", i.Train, i.Eval)
	case i != e.Info():
		return errors.New("what Info says changes")
	}
	return nil
}

func checkTasks(e env.Environment, _ []Player) error {
	for _, split := range splits {
		n := e.Info().Tasks(split)
		for i := range min(n, sampledTasks) {
			a, err := e.Task(split, i)
			if err != nil {
				return fmt.Errorf("task %d of %s: %w", i, split, err)
			}
			if b, err := e.Task(split, i); err != nil || string(a) != string(b) {
				return fmt.Errorf("task %d of %s changes: %s, then %s (%v)", i, split, a, b, err)
			}
			var object map[string]any
			if err := json.Unmarshal(a, &object); err != nil || object == nil {
				return fmt.Errorf("task %d of %s is no JSON object: %s", i, split, a)
			}
		}
		for _, i := range []int{-1, n, math.MaxInt} {
			if _, err := e.Task(split, i); err == nil {
				return fmt.Errorf("task %d of %s exists; there are %d", i, split, n)
			}
		}
	}
	if _, err := e.Task("nowhere", 0); err == nil {
		return errors.New(`split "nowhere" has a task`)
	}
	return nil
}

func checkDisjoint(e env.Environment, _ []Player) error {
	i := e.Info()
	if !i.Disjoint {
		return nil
	}
	trained := map[string]int{}
	for n := range min(i.Train, maxTasks) {
		task, err := e.Task(env.Train, n)
		if err != nil {
			return err
		}
		trained[string(task)] = n
	}
	for n := range min(i.Eval, maxTasks) {
		task, err := e.Task(env.Eval, n)
		if err != nil {
			return err
		}
		if m, ok := trained[string(task)]; ok {
			return fmt.Errorf("eval task %d is training task %d: %s", n, m, task)
		}
	}
	return nil
}

// checkBadTasks wants an error, not a panic, of Start on tasks that no split has; some of them may be good ones.
func checkBadTasks(e env.Environment, _ []Player) error {
	for _, task := range []string{``, `{`, `null`, `[]`, `"x"`, `1`, `{}`, `{"a":{"b":[]}}`} {
		s, err := env.Begin(context.Background(), e, json.RawMessage(task), 1)
		var p *env.PanicError
		if errors.As(err, &p) {
			return fmt.Errorf("task %q: %w\n%s", task, err, p.Stack)
		}
		if err == nil {
			if err := s.Close(); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkEpisodes plays each task twice: the two runs are the same, end in time and have a score that can be recorded.
func checkEpisodes(e env.Environment, players []Player) error {
	for _, split := range splits {
		n := e.Info().Tasks(split)
		if n == 0 {
			continue
		}
		for p, player := range players {
			for seed := range sampledSeeds {
				task, err := e.Task(split, seed*7919%n)
				if err != nil {
					return err
				}
				a, err := Play(context.Background(), e, task, int64(seed), player)
				if err != nil {
					return fmt.Errorf("player %d, task %s, seed %d: %w", p, task, seed, err)
				}
				b, err := Play(context.Background(), e, task, int64(seed), player)
				if err != nil || !reflect.DeepEqual(a, b) {
					return fmt.Errorf("player %d, task %s, seed %d: two runs differ (%v):\n%+v\n%+v", p, task, seed, err, a, b)
				}
				if err := errors.Join(checkRoles(a), checkRescore(e, task, int64(seed), a)); err != nil {
					return fmt.Errorf("player %d, task %s, seed %d: %w", p, task, seed, err)
				}
			}
		}
	}
	return nil
}

func checkRoles(r env.Rollout) error {
	for i, m := range r.Messages {
		switch m.Role {
		case env.RoleSystem, env.RoleUser, env.RoleAssistant, env.RoleTool:
		default:
			return fmt.Errorf("message %d has role %q", i, m.Role)
		}
	}
	return nil
}

// checkRescore scores a recorded conversation anew, where the environment can: nothing has changed, so neither has the score.
func checkRescore(e env.Environment, task json.RawMessage, seed int64, played env.Rollout) error {
	r, ok := e.(env.Rescorer)
	if !ok {
		return nil
	}
	again, err := r.Rescore(context.Background(), task, seed, played.Messages, true)
	if err != nil || !reflect.DeepEqual(again, played.Score) {
		return fmt.Errorf("the same conversation scores %+v, recorded was %+v (%v)", again, played.Score, err)
	}
	return nil
}

// checkCut scores an episode that ends before the first reply.
func checkCut(e env.Environment, _ []Player) error {
	ctx := context.Background()
	task, err := e.Task(env.Train, 0)
	if err != nil {
		return err
	}
	s, err := env.Begin(ctx, e, task, 1)
	if err != nil {
		return err
	}
	if _, err := s.Score(ctx); err != nil {
		return fmt.Errorf("before the first reply: %w", err)
	}
	return s.Close()
}

func checkUnknownFields(e env.Environment, players []Player) error {
	task, err := e.Task(env.Train, 0)
	if err != nil {
		return err
	}
	var object map[string]any
	if err := json.Unmarshal(task, &object); err != nil {
		return err
	}
	object["field_of_a_later_version"] = 1
	more, err := json.Marshal(object)
	if err != nil {
		return err
	}
	a, err := Play(context.Background(), e, task, 1, players[0])
	if err != nil {
		return err
	}
	b, err := Play(context.Background(), e, more, 1, players[0])
	if err != nil || !reflect.DeepEqual(a, b) {
		return fmt.Errorf("a field that is not known changes the episode (%v):\n%+v\n%+v", err, a, b)
	}
	return nil
}

// checkConcurrent plays one task in several goroutines at once; with the race detector it shows state that episodes share.
func checkConcurrent(e env.Environment, players []Player) error {
	task, err := e.Task(env.Train, 0)
	if err != nil {
		return err
	}
	want, err := Play(context.Background(), e, task, 1, players[0])
	if err != nil {
		return err
	}
	var group errgroup.Group
	for range parallel {
		group.Go(func() error {
			got, err := Play(context.Background(), e, task, 1, players[0])
			if err != nil || !reflect.DeepEqual(got, want) {
				return fmt.Errorf("beside others the episode is another one (%v):\n%+v\n%+v", err, got, want)
			}
			return nil
		})
	}
	return group.Wait()
}

func checkBaselines(e env.Environment, _ []Player) error {
	b, ok := e.(env.Baseliner)
	if !ok {
		return nil
	}
	for _, split := range splits {
		first := b.Baselines(split)
		for name, v := range first {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return fmt.Errorf("baseline %q of %s is %v", name, split, v)
			}
		}
		if !reflect.DeepEqual(first, b.Baselines(split)) {
			return fmt.Errorf("baselines of %s change", split)
		}
	}
	return nil
}
