package emitter

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func TestStateIsSmall(t *testing.T) {
	run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
	run.BatchSize, cfg.TasksPerTick = 8000, 100_000
	c := envs["catch"]
	c.GroupSize = 2000
	envs["catch"] = c
	w := newWorld(t, run, cfg, envs)
	w.table(policy(0, false))
	w.table(info("catch", 1<<50))
	w.table(info("wordle", 1<<50))
	empty, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		w.tick(second)
	}
	for range 1000 { // 1000 s old
		w.tick(second)
	}
	state, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	per := float64(len(state)-len(empty)) / float64(w.core().Open())
	t.Logf("%d open groups take %.2f bytes each", w.core().Open(), per)
	if per > 24 {
		t.Error("that is more than 24")
	}
	w.r.Restart(t)
}

func TestStateNamesAnEnvironmentThatIsGone(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	state, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	envs := testEnvs()
	delete(envs, "wordle")
	factory, err := New(testRun(), DefaultConfig(), envs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := factory(0, state); err == nil || !strings.Contains(err.Error(), "put [envs.wordle] back") {
		t.Errorf("error %v", err)
	}
	if _, err := factory(1, nil); err == nil {
		t.Error("a second partition was accepted")
	}
}

// TestStateOfFormat1 restores a state that was written before mix, curricula and versions stood in it.
func TestStateOfFormat1(t *testing.T) {
	old, err := hex.DecodeString(format1)
	if err != nil {
		t.Fatal(err)
	}
	for name, set := range learners() {
		t.Run(name, func(t *testing.T) {
			run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
			set(&cfg, envs)
			change(envs, func(c *EnvConfig) { c.GroupSize = 4 })
			run.BatchSize, run.MaxOffPolicySteps, cfg.Staleness = 64, 1, StalenessWait
			factory, err := New(run, cfg, envs)
			if err != nil {
				t.Fatal(err)
			}
			restored, err := factory(0, old)
			if err != nil {
				t.Fatal(err)
			}
			c := restored.(*Core)
			if g := c.open[len(c.open)-1]; len(c.open) != 10 || c.nextID != 14 || c.packed != 2 || c.held != 36 || g.id != 13 || g.taskIndex != 6 || g.env.Name != "wordle" {
				t.Errorf("%d groups open with %d rollouts, next id %d, packed %d, the last is %+v", len(c.open), c.held, c.nextID, c.packed, g)
			}
			if _, err := c.State(); err != nil {
				t.Error(err)
			}
			// It goes on, although the versions of what is open are not known.
			for _, v := range []schemas.Record{policy(2, false), info("catch", 10), info("wordle", 7)} {
				if err := c.Table(pipeline.Record{Value: v}); err != nil {
					t.Fatal(err)
				}
			}
			var out pipeline.Out
			if err := c.Tick(time.UnixMilli(1_800_000_000_000), &out); err != nil || len(out.Emitted) == 0 {
				t.Errorf("%d tasks, %v", len(out.Emitted), err)
			}
		})
	}
}

// format1 is the state of the default configuration over testEnvs in format 1: 14 groups emitted, 4 of them decided, and
// two steps packed.
const format1 = "017063673ae7a2670d3e11f6a9e33f3f4391bfdee600e8d795ffbc310e0200000002056361746368000806776f72646c6500060a01001000010102" +
	"0102001000060002001000040002001000080001001000050001010c00020001001000030001010c00010001010c00050001010c000600"

// What another kind of mix or curriculum has learnt is let go of; the cursors stay.
func TestStateOfAnotherKindOfLearning(t *testing.T) {
	for name, set := range learners() {
		cfg, envs := DefaultConfig(), testEnvs()
		set(&cfg, envs)
		w := ready(t, testRun(), cfg, envs)
		w.score = byTask
		w.tick(second)
		for range 5 {
			w.outcome(w.open[0], 1)
		}
		state, err := w.core().State()
		if err != nil {
			t.Fatal(err)
		}
		for other, set := range learners() {
			cfg, envs := DefaultConfig(), testEnvs()
			set(&cfg, envs)
			c, err := newCore(testRun(), cfg, envs, state)
			if err != nil {
				t.Fatalf("%s after %s: %v", other, name, err)
			}
			again, err := c.State()
			if err != nil || (string(again) == string(state)) != (other == name) {
				t.Errorf("%s after %s: %d bytes become %d, %v", other, name, len(state), len(again), err)
			}
			if c.envs[0].cursor.pos != w.core().envs[0].cursor.pos || len(c.open) != len(w.open) {
				t.Errorf("%s after %s: cursor at %d, %d groups open", other, name, c.envs[0].cursor.pos, len(c.open))
			}
		}
	}
}

// A restart that reads the tables late, or not to their end, knows the versions that its open groups prove.
func TestStateKnowsVersions(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.table(policy(5, false))
	w.tick(second)
	state, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCore(testRun(), DefaultConfig(), testEnvs(), state)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []schemas.Record{policy(3, false), info("catch", 10), info("wordle", 7)} {
		if err := c.Table(pipeline.Record{Value: v}); err != nil {
			t.Fatal(err)
		}
	}
	c.close(0)
	var out pipeline.Out
	if err := c.Tick(w.now.Add(second), &out); err != nil || len(out.Emitted) == 0 {
		t.Fatalf("%d tasks, %v", len(out.Emitted), err)
	}
	if state, err = c.State(); err != nil {
		t.Fatal(err)
	}
	if c, err = newCore(testRun(), DefaultConfig(), testEnvs(), state); err != nil || c.open[len(c.open)-1].version != 5 {
		t.Errorf("version %d, %v", c.open[len(c.open)-1].version, err)
	}
}

func FuzzState(f *testing.F) {
	sections := func(learning bool) (pipeline.RunConfig, Config, map[string]EnvConfig) {
		cfg, envs := DefaultConfig(), testEnvs()
		if learning {
			cfg.Mix = MixTokens
			change(envs, func(c *EnvConfig) { c.Curriculum = poolsConfig(nil) })
			envs["wordle"] = func(c EnvConfig) EnvConfig { c.Curriculum = gateConfig(nil); return c }(envs["wordle"])
		}
		return orderedRun(), cfg, envs
	}
	for _, learning := range []bool{false, true} {
		run, cfg, envs := sections(learning)
		w := ready(f, run, cfg, envs)
		w.score = byTask
		w.tick(second)
		w.refill(0, 1, 1)
		w.outcome(1, 1)
		w.outcome(2, 1)
		state, err := w.core().State()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(learning, state)
		f.Add(learning, state[:len(state)-3])
		f.Add(learning, append(state[:60:60], 0xff, 0xff, 0xff))
	}
	f.Fuzz(func(t *testing.T, learning bool, state []byte) {
		factory, err := New(sections(learning))
		if err != nil {
			t.Fatal(err)
		}
		core, err := factory(0, state)
		if err != nil {
			return
		}
		// What is accepted is written again as it was understood.
		again, err := core.State()
		if err != nil {
			t.Fatal(err)
		}
		var other pipeline.Core
		if other, err = factory(0, again); err != nil {
			t.Fatalf("%x was accepted, %x is not: %v", state, again, err)
		}
		third, err := other.State()
		if err != nil || string(third) != string(again) {
			t.Fatalf("%x becomes %x: %v", again, third, err)
		}
	})
}

// A mean of the largest rewards may be rounded up, above all of them.
func TestReaderTakesEveryFiniteNumber(t *testing.T) {
	for _, v := range []float64{0, -1, math.Nextafter(maxReward, math.Inf(1)), math.MaxFloat64} {
		r := reader{rest: binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))}
		if got := r.float(); got != v || r.err != nil {
			t.Errorf("%v: %v, %v", v, got, r.err)
		}
	}
	for _, v := range []float64{math.NaN(), math.Inf(1)} {
		r := reader{rest: binary.LittleEndian.AppendUint64(nil, math.Float64bits(v))}
		if r.float(); r.err == nil {
			t.Errorf("%v is taken", v)
		}
	}
}
