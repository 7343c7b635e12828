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
	for want, change := range map[string]func(*sections){
		"":                                       func(*sections) {},
		"emitter.permits = 19: at least":         func(s *sections) { s.cfg.Permits = 19 },
		"run.max_steps = 0":                      func(s *sections) { s.run.MaxSteps = 0 },
		"emitter.env_lost = 5s":                  func(s *sections) { s.cfg.EnvLost = pipeline.Duration(5 * time.Second) },
		"no environments":                        func(s *sections) { s.envs = nil },
		"1 of 2 environments set it":             env(func(c *EnvConfig) { c.Ratio = ratio(1) }),
		"envs.catch.ratio = -1":                  env(func(c *EnvConfig) { c.Ratio = ratio(-1) }),
		"envs.catch.group_size = 0":              env(func(c *EnvConfig) { c.GroupSize = 0 }),
		"envs.catch.temperature = 0: 0.01 to 10": env(func(c *EnvConfig) { c.Temperature = 0 }),
		"envs.catch.top_p = 0.9":                 env(func(c *EnvConfig) { c.TopP = 0.9 }),
		"above run.seq_len = 64":                 env(func(c *EnvConfig) { c.MaxRolloutTokens = 65 }),
		"envs.catch.group_timeout = 40s": env(func(c *EnvConfig) {
			c.Timeout, c.GroupTimeout = pipeline.Duration(10*time.Second), pipeline.Duration(40*time.Second)
		}),
	} {
		s := sections{testRun(), DefaultConfig(), testEnvs()}
		change(&s)
		err := Validate(s.run, s.cfg, s.envs)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
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
