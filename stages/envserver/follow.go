package envserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// followPause is the wait before a topic that could not be read is read again.
const followPause = time.Second

// An opener starts to read a topic.
type opener func(ctx context.Context) (*pipeline.Follower, error)

func (s *Server) followPolicies(context.Context) (*pipeline.Follower, error) {
	return s.rt.Follow(pipeline.TopicPolicies)
}

// follow tells of every record of a topic until ctx ends. It may tell of one several times. An error is fatal.
func (s *Server) follow(ctx context.Context, open opener, tell func(context.Context, schemas.Record) error) error {
	for ctx.Err() == nil {
		err := s.read(ctx, open, tell)
		if errors.Is(err, pipeline.ErrFatal) {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		s.rt.Log.Warn("a topic is read again", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
	return nil
}

func (s *Server) read(ctx context.Context, open opener, tell func(context.Context, schemas.Record) error) error {
	f, err := open(ctx)
	if err != nil {
		return err
	}
	defer f.Close()
	for ctx.Err() == nil {
		recs, err := f.Poll(ctx)
		if err != nil {
			return err
		}
		for _, r := range recs {
			if err := tell(ctx, r.Value); err != nil {
				return fmt.Errorf("%v: %w", r.Ref, err)
			}
		}
	}
	return nil
}

// policy takes the tokenizer from the first policy version, with which rollouts may start once the model takes it, and
// tells the pool of all.
func (s *Server) policy(ctx context.Context, r schemas.Record) error {
	v := r.(*schemas.PolicyVersion)
	s.pool.policy(v.Version)
	if !s.ready {
		data, err := s.rt.Blobs.Get(ctx, v.Tokenizer)
		if err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
		renderer, err := s.parse(data)
		if err != nil {
			return pipeline.Fatal("tokenizer of version %d: %w", v.Version, err)
		}
		if v, ok := s.model.(Verifier); ok {
			if err := v.Verify(ctx, data); err != nil {
				return err
			}
		}
		s.pool.mu.Lock()
		for _, p := range s.players {
			p.renderer = renderer
		}
		s.pool.open, s.ready = true, true
		s.pool.mu.Unlock()
	}
	return nil
}

func (s *Server) outcome(_ context.Context, r schemas.Record) error {
	s.pool.outcome(r.(*schemas.GroupOutcome))
	return nil
}
