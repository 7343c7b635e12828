package remote

import (
	"context"
	"fmt"
	"time"

	"github.com/prl-project/prl/stages/inference"
)

// load makes the server sample with the goal's weights and under its label, and nothing in between: it is paused, called
// what nothing else is, given the weights, called by their name, asked for it, and only then let go on. Where this is broken
// off anywhere, or the server was started anew or given other weights meanwhile, it is not called by that name, and so given
// the weights again.
func (s *server) load(ctx context.Context, goal target) error {
	limit := time.Duration(s.fleet.cfg.LoadTimeout)
	label, err := s.label(ctx)
	if err != nil {
		return err
	}
	if label != goal.label && s.fleet.cfg.Swap == inference.SwapFinish {
		s.drain(ctx)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%v were not enough to load %s (inference.remote.load_timeout)", limit, &goal))
	defer cancel()
	d := s.fleet.make
	if label != goal.label {
		if err := d.pause(ctx, s.client); err != nil {
			return fmt.Errorf("pause: %w", err)
		}
		loading := newLoadingLabel()
		if err := d.relabel(ctx, s.client, loading); err != nil {
			return fmt.Errorf("say that weights are loaded: %w", err)
		}
		if err := d.load(ctx, s.client, goal.folder, loading, goal.label); err != nil {
			return fmt.Errorf("load %s from %s (do the servers see inference.remote.dir there, and were they started on this model?): %w", &goal, goal.folder, err)
		}
		if label, err = s.label(ctx); err != nil {
			return err
		}
		if label != goal.label {
			return fmt.Errorf("%w: %q after %q was loaded", errLabel, label, goal.label)
		}
	}
	if err := d.resume(ctx, s.client); err != nil { // also where a stage before this one did not come so far
		return fmt.Errorf("go on with %s: %w", &goal, err)
	}
	return nil
}

// drain waits until the requests at the server have ended, or long enough.
func (s *server) drain(ctx context.Context) {
	limit := time.NewTimer(time.Duration(s.fleet.cfg.DrainTimeout))
	defer limit.Stop()
	for {
		s.fleet.mu.Lock()
		running, changed := s.running, s.fleet.changed
		s.fleet.mu.Unlock()
		if running == 0 {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		case <-limit.C:
			s.fleet.log.Warn("requests are kept over a change of weights: they did not end in time", "server", s.url, "requests", running, "after", s.fleet.cfg.DrainTimeout)
			return
		}
	}
}
