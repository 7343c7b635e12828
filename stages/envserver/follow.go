package envserver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
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

// policy takes the tokenizer from the first policy version, with which rollouts may start once the policies have been
// checked, and tells the pool of all.
func (s *Server) policy(ctx context.Context, r schemas.Record) error {
	v := r.(*schemas.PolicyVersion)
	s.pool.policy(v.Version)
	if v.Final {
		s.pool.mu.Lock()
		s.final = true
		s.pool.mu.Unlock()
	}
	if !s.ready {
		data, err := s.rt.Blobs.Get(ctx, v.Tokenizer)
		if err != nil {
			return fmt.Errorf("tokenizer: %w", err)
		}
		renderer, err := render.New(s.cfg.Renderer, data)
		if err != nil {
			return pipeline.Fatal("tokenizer of version %d: %w", v.Version, err)
		}
		for _, p := range s.players {
			p.renderer = renderer // nothing is played before the pool opens
		}
		if err := s.check(ctx, data); err != nil {
			return err
		}
		s.pool.mu.Lock()
		s.pool.open, s.ready = true, true
		for _, q := range s.pool.queues {
			q.stir()
		}
		s.pool.mu.Unlock()
	}
	return nil
}

// check looks at the servers of the policies, and at the demonstrations, until they can be used. An error is fatal, or why
// ctx ended.
func (s *Server) check(ctx context.Context, tokenizer []byte) error {
	for {
		err := s.model.Verify(ctx, tokenizer)
		for _, p := range s.players {
			if err == nil {
				err = p.checkDemonstrations(ctx)
			}
		}
		if err == nil || errors.Is(err, pipeline.ErrFatal) || ctx.Err() != nil {
			return err
		}
		s.rt.Log.Warn("nothing is played yet: the policies of the run cannot be checked", "error", err)
		select {
		case <-ctx.Done():
		case <-time.After(followPause):
		}
	}
}

func (s *Server) outcome(_ context.Context, r schemas.Record) error {
	s.pool.outcome(r.(*schemas.GroupOutcome))
	return nil
}
