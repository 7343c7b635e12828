package envserver

import (
	"context"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// askEvery is how often an environment is asked how much room it has.
const askEvery = 100 * time.Millisecond

// heed asks an environment how much room it has, and tells the pool, until ctx ends. While it does not answer, or panics, what it
// said last holds.
func (s *Server) heed(ctx context.Context, p *player, environment env.Limited) error {
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	silent := false
	for {
		answered := make(chan struct{})
		n, err := do(ctx, p.newEpisode(), "capacity", func(context.Context) (int, error) {
			defer close(answered)
			return environment.Capacity(), nil
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			s.pool.hasRoom(p.info.Name, n)
		case !silent:
			s.rt.Log.Warn("an environment does not say how much room it has", "env", p.info.Name, "error", err)
		}
		silent = err != nil
		select {
		case <-answered: // one question at a time
		case <-ctx.Done():
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
