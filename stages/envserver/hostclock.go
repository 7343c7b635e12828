package envserver

import (
	"sync"
	"time"

	"github.com/prl-project/prl/schemas"
)

// A hostClock measures how long a rollout waits for the model: the time in which at least one call does.
type hostClock struct {
	begun time.Time

	mu          sync.Mutex
	running     int
	first, last time.Time     // begin of the first call, end of the last
	since       time.Time     // that some run
	waited      time.Duration // all told
}

func (c *hostClock) enter() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	if c.running++; c.running == 1 {
		c.since = now
	}
	if c.first.IsZero() {
		c.first = now
	}
}

func (c *hostClock) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = time.Now()
	if c.running--; c.running == 0 {
		c.waited += c.last.Sub(c.since)
	}
}

// tell splits the time until now: before the first call, in calls, behind the last, and the host's between them.
func (c *hostClock) tell(t *schemas.Timing) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	if c.last.IsZero() || c.running > 0 {
		t.SetupMs, t.GenerationMs = ms(time.Since(c.begun)-c.waited), ms(c.waited)
		return
	}
	t.SetupMs, t.GenerationMs = ms(c.first.Sub(c.begun)), ms(c.waited)
	t.EnvironmentMs, t.ScoringMs = ms(c.last.Sub(c.first)-c.waited), ms(time.Since(c.last))
}
