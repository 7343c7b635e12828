package replay

import (
	"context"
	"errors"
	"iter"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// groups gives the scored groups in the order in which they are asked for.
type groups interface {
	// take gives the group of a turn; nil where it is undecided.
	take(ctx context.Context, t turn) (*schemas.SampleGroup, error)
	// left is the number of records that were refused, and of traces that failed as they were given new rewards.
	left() (refused int64, lost map[string]int64)
	close()
}

func (r *replayer) openGroups() (groups, error) {
	w := waiting{wanted: map[int64]bool{}, ahead: map[int64]*schemas.SampleGroup{}, lost: map[string]int64{}}
	for _, t := range r.rec.turns {
		w.wanted[t.group] = true
	}
	if r.cfg.Topic == pipeline.TopicSamples {
		return &recordedGroups{waiting: w, src: r.src}, nil
	}
	s := &scoredGroups{
		waiting: w, src: r.src, rescorer: r.cfg.Rescorer, parts: make([]part, r.cfg.Recorded.TracePartitions),
		cores: make([]pipeline.Core, r.cfg.Run.TracePartitions),
	}
	for p := range s.cores {
		core, err := r.cfg.Scorer(int32(p), nil)
		if err != nil {
			return nil, err
		}
		s.cores[p] = core
	}
	return s, nil
}

// waiting are groups that have been read before their turn.
type waiting struct {
	wanted map[int64]bool // that are to come
	ahead  map[int64]*schemas.SampleGroup
	bad    int64
	lost   map[string]int64
}

// keep takes a group that is to come; any other has come, or is not selected.
func (w *waiting) keep(g *schemas.SampleGroup) bool {
	wanted := w.wanted[g.GroupID]
	if wanted {
		w.ahead[g.GroupID] = g
		delete(w.wanted, g.GroupID)
	}
	return wanted
}

func (w *waiting) give(group int64) (*schemas.SampleGroup, bool) {
	g, ok := w.ahead[group]
	delete(w.ahead, group)
	return g, ok
}

func (w *waiting) left() (refused int64, lost map[string]int64) { return w.bad, w.lost }

// maxAhead bounds the groups of a partition that wait for their turn. Under the recorded configuration none does: a group
// is decided by the trace that decided it then. Under one that decides some earlier than was done, or never, others wait.
const maxAhead = 1024

// scoredGroups scores the recorded traces. A group is read for in its partition until it is decided, so the cores decide
// in the recorded order; all traces are scored from the first on, whatever is selected, as an algorithm may remember them.
type scoredGroups struct {
	waiting
	src      Source
	rescorer func(env string) (Rescorer, error)
	parts    []part          // of the recorded traces
	cores    []pipeline.Core // of the other configuration, which may have another number of partitions
	n        int64           // traces scored
}

// part is a partition that is being read.
type part struct {
	next  func() (Record, error, bool)
	stop  func()
	done  bool
	ahead int // groups that wait
}

func (s *scoredGroups) take(ctx context.Context, t turn) (*schemas.SampleGroup, error) {
	n := int32(t.group % int64(len(s.parts)))
	p := &s.parts[n]
	if p.next == nil {
		p.next, p.stop = iter.Pull2(s.src.Read(ctx, pipeline.TopicTraces, n))
	}
	for {
		if g, ok := s.give(t.group); ok {
			p.ahead--
			return g, nil
		}
		if p.done || p.ahead >= maxAhead {
			delete(s.wanted, t.group)
			return nil, nil
		}
		rec, err, ok := p.next()
		if err != nil {
			return nil, err
		}
		if p.done = !ok; ok {
			if err := s.score(ctx, rec, p); err != nil {
				return nil, err
			}
		}
	}
}

// score gives a trace to the core of its group.
func (s *scoredGroups) score(ctx context.Context, rec Record, p *part) error {
	t, ok, err := decode[*schemas.Trace](ctx, rec)
	if err != nil {
		return err
	}
	if !ok || t.GroupID%int64(len(s.parts)) != int64(rec.Partition) {
		s.bad++
		return nil
	}
	if s.rescorer != nil {
		if t, err = s.rescore(ctx, t); err != nil {
			return err
		}
	}
	n := t.GroupID % int64(len(s.cores))
	var out pipeline.Out
	s.n++
	err = s.cores[n].Process(pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicTraces, Partition: int32(n), Offset: s.n}, Key: rec.Key, Value: t}, &out)
	if errors.Is(err, pipeline.ErrFatal) {
		return err
	}
	if err != nil { // poison
		s.bad++
		return nil
	}
	for _, e := range out.Emitted {
		if g, ok := e.Value.(*schemas.SampleGroup); ok && s.keep(g) {
			p.ahead++
		}
	}
	return nil
}

func (s *scoredGroups) rescore(ctx context.Context, t *schemas.Trace) (*schemas.Trace, error) {
	r, err := s.rescorer(t.Env)
	if err != nil {
		return nil, err
	}
	again, err := r.Rescore(ctx, t)
	if err == nil && lost(t, again) {
		s.lost[again.Errors[0].Type]++
	}
	return again, err
}

func (s *scoredGroups) close() {
	for _, p := range s.parts {
		if p.stop != nil {
			p.stop()
		}
	}
}

// recordedGroups gives the groups as they were scored.
type recordedGroups struct {
	waiting
	src  Source
	part part
}

func (s *recordedGroups) take(ctx context.Context, t turn) (*schemas.SampleGroup, error) {
	if s.part.next == nil {
		s.part.next, s.part.stop = iter.Pull2(s.src.Read(ctx, pipeline.TopicSamples, 0))
	}
	for {
		if g, ok := s.give(t.group); ok {
			return g, nil
		}
		rec, err, ok := s.part.next()
		if err != nil || !ok {
			return nil, err
		}
		_, id, known := pipeline.GroupOfKey(rec.Key)
		if known && !s.wanted[id] {
			continue
		}
		g, ok, err := decode[*schemas.SampleGroup](ctx, rec)
		if err != nil {
			return nil, err
		}
		if !ok {
			s.bad++
			if !known {
				continue
			}
			g = standIn(id) // as the packer has it
		}
		s.keep(g)
	}
}

func (s *recordedGroups) close() {
	if s.part.stop != nil {
		s.part.stop()
	}
}
