package emitter

import (
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
)

func TestValidateSaysWhatIsAllowed(t *testing.T) {
	type sections struct {
		run  pipeline.RunConfig
		cfg  Config
		envs map[string]EnvConfig
	}
	env := func(change func(*EnvConfig)) func(*sections) {
		return func(s *sections) {
			c := s.envs["catch"]
			change(&c)
			s.envs["catch"] = c
		}
	}
	wait := func(change func(*sections)) func(*sections) {
		return func(s *sections) {
			s.cfg.Staleness = StalenessWait
			env(func(c *EnvConfig) { c.GroupSize = 3 })(s)
			change(s)
		}
	}
	for want, change := range map[string]func(*sections){
		"":                                       func(*sections) {},
		"emitter.permits = 19: at least":         func(s *sections) { s.cfg.Permits = 19 },
		"run.max_steps = 0":                      func(s *sections) { s.run.MaxSteps = 0 },
		"emitter.env_lost = 5s":                  func(s *sections) { s.cfg.EnvLost = pipeline.Duration(5 * time.Second) },
		"no environments":                        func(s *sections) { s.envs = nil },
		"1 of 2 environments set it":             env(func(c *EnvConfig) { c.Ratio = ratio(1) }),
		"envs.catch.ratio = -1":                  env(func(c *EnvConfig) { c.Ratio = ratio(-1) }),
		"envs.catch.group_size = 0":              env(func(c *EnvConfig) { c.GroupSize = 0 }),
		"envs.catch.concurrency = -1":            env(func(c *EnvConfig) { c.Concurrency = -1 }),
		"envs.catch.temperature = 0: 0.01 to 10": env(func(c *EnvConfig) { c.Temperature = 0 }),
		"envs.catch.top_p = 0.9":                 env(func(c *EnvConfig) { c.TopP = 0.9 }),
		"above run.seq_len = 64":                 env(func(c *EnvConfig) { c.MaxRolloutTokens = 65 }),
		"envs.catch.group_timeout = 40s": env(func(c *EnvConfig) {
			c.Timeout, c.GroupTimeout = pipeline.Duration(10*time.Second), pipeline.Duration(40*time.Second)
		}),
		`emitter.staleness = "hold"`:           func(s *sections) { s.cfg.Staleness = "hold" },
		"emitter.serving_lag = -1":             func(s *sections) { s.cfg.ServingLag = -1 },
		"emitter.serving_lag = 2: only with":   func(s *sections) { s.cfg.ServingLag = 2 },
		`emitter.mix = "even": one of`:         func(s *sections) { s.cfg.Mix = "even" },
		"emitter.progress: only with":          func(s *sections) { s.cfg.Progress.Floor = 0.5 },
		"emitter.progress.floor = 0: above 0":  func(s *sections) { s.cfg.Mix, s.cfg.Progress.Floor = MixProgress, 0 },
		"emitter.progress: slow = 0.5, fast =": func(s *sections) { s.cfg.Mix, s.cfg.Progress.Slow = MixProgress, 0.5 },
		"in ordered mode nothing goes stale":   wait(func(s *sections) { s.run.MaxAsyncLevel = 0 }),
		"run.batch_tokens = 99: how many":      wait(func(s *sections) { s.run.BatchTokens = 99 }),
		"serving_lag = 10 is above run.max_of": wait(func(s *sections) { s.cfg.ServingLag = 10 }),
		"envs.wordle.group_size = 3, and that": func(s *sections) { s.cfg.Staleness = StalenessWait },
		`envs.catch.policy = "self"`:           env(func(c *EnvConfig) { c.Policy = "self" }),
		`envs.catch.policy = "a/b": the name`:  env(func(c *EnvConfig) { c.Policy = "a/b" }),
		`envs.catch.teacher = "a b": the name`: env(func(c *EnvConfig) { c.Teacher = "a b" }),
		"curriculum.kind = \"\": one of":       env(func(c *EnvConfig) { c.Curriculum.Kind = "" }),
		"envs.catch.curriculum.remember = 0":   env(func(c *EnvConfig) { c.Curriculum = poolsConfig(nil); c.Curriculum.Remember = 0 }),
		"curriculum.remember: only with":       env(func(c *EnvConfig) { c.Curriculum.Remember = 5 }),
		"curriculum.pools: only with":          env(func(c *EnvConfig) { c.Curriculum.Pools.Easy = 5 }),
		"curriculum.gate: only with":           env(func(c *EnvConfig) { c.Curriculum.Gate.PassOver = 5 }),
		"easy = 0, normal = 0, hard = 0": env(func(c *EnvConfig) {
			c.Curriculum = poolsConfig(func(p *PoolsConfig) { p.Easy, p.Normal, p.Hard = 0, 0, 0 })
		}),
		"hard_at = 0.9, easy_at = 0.8": env(func(c *EnvConfig) { c.Curriculum = poolsConfig(func(p *PoolsConfig) { p.HardAt = 0.9 }) }),
		"pools.solved_at = 0":          env(func(c *EnvConfig) { c.Curriculum = poolsConfig(func(p *PoolsConfig) { p.SolvedAt = 0 }) }),
		"pools.rate = 2":               env(func(c *EnvConfig) { c.Curriculum = poolsConfig(func(p *PoolsConfig) { p.Rate = 2 }) }),
		"min_range = 2, max_range = 1": env(func(c *EnvConfig) { c.Curriculum = gateConfig(func(g *GateConfig) { g.MinRange, g.MaxRange = 2, 1 }) }),
		"gate.pass_over = 0":           env(func(c *EnvConfig) { c.Curriculum = gateConfig(func(g *GateConfig) { g.PassOver = 0 }) }),
		"a rollout alone has no range": env(func(c *EnvConfig) { c.Curriculum = gateConfig(nil); c.GroupSize = 1 }),
	} {
		s := sections{testRun(), DefaultConfig(), testEnvs()}
		change(&s)
		err := Validate(s.run, s.cfg, s.envs)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

func TestWaitTakesOneGroupSizeOfWhatIsPicked(t *testing.T) {
	cfg, envs := DefaultConfig(), testEnvs()
	cfg.Staleness = StalenessWait
	for name, r := range map[string]float64{"catch": 1, "wordle": 0} { // groups of 4 and of 3
		c := envs[name]
		c.Ratio = ratio(r)
		envs[name] = c
	}
	if err := Validate(testRun(), cfg, envs); err != nil {
		t.Error(err)
	}
}

func TestDefaultPermits(t *testing.T) {
	run := testRun()
	run.MaxAsyncLevel, run.MaxOffPolicySteps = 2, 3
	if got := DefaultConfig().permits(run, testEnvs()); got != 4*16+4 {
		t.Errorf("%d permits", got)
	}
	if err := (&Config{Permits: 20}).Validate(); err == nil {
		t.Error("env_lost 0 was accepted")
	}
}

func TestDurationText(t *testing.T) {
	var d pipeline.Duration
	if err := d.UnmarshalText([]byte("90s")); err != nil || d.Milliseconds() != 90_000 {
		t.Errorf("%v, %v", d, err)
	}
	if err := d.UnmarshalText([]byte("90")); err == nil {
		t.Error("a number without a unit was accepted")
	}
	if text, err := d.MarshalText(); err != nil || string(text) != "1m30s" {
		t.Errorf("%s, %v", text, err)
	}
}
