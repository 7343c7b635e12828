package ui

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/history"
)

const (
	pollWait  = 500 * time.Millisecond
	pingWait  = 5 * time.Second
	lookEvery = 10 * time.Second // at the files, where no topic is followed, or after a failure
)

// followed are the topics that are read live, beside those of tasks.
var followed = []string{
	pipeline.TopicEnvs, pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples, pipeline.TopicOutcomes,
	pipeline.TopicBatches, pipeline.TopicPolicies, pipeline.TopicEvals, pipeline.TopicMetrics, pipeline.TopicState, pipeline.TopicDLQ,
}

// fromFiles are the topics whose files are read from the beginning of the run: the small ones first, so that the curves are
// there at once, then those of rollouts, the newest first.
var fromFiles = [][]string{
	{pipeline.TopicPolicies, pipeline.TopicEvals, pipeline.TopicMetrics}, {pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicOutcomes},
}

// Topics are those that the stage reads.
func Topics(allTasks string) []string { return append(slices.Clone(followed), allTasks) }

// positions are by topic and partition.
type positions map[string]map[int32]int64

func (p positions) at(topic string, partition int32) int64 { return p[topic][partition] }

func (p positions) raise(topic string, partition int32, to int64) {
	if p[topic] == nil {
		p[topic] = map[int32]int64{}
	}
	p[topic][partition] = max(p[topic][partition], to)
}

// read fills the model: from the files what they hold, from the topics what comes behind. Where following fails it looks
// again at what the files hold by then. No failure ends it; the page says what it is.
func (u *UI) read(ctx context.Context) error {
	seen := positions{}
	var left []part
	for ctx.Err() == nil {
		err := guarded(func() error { return u.readOnce(ctx, seen, &left) })
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			u.rt.Log.Warn("the page does not get on; it is tried again", "stage", Name, "error", err)
		}
		u.model.locked(func() {
			u.model.load.Live, u.model.load.Following, u.model.load.Error = false, false, ""
			if err != nil {
				u.model.load.Error = err.Error()
			}
			u.model.rev++
		})
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery):
		}
	}
	return nil
}

// readOnce reads the files that have not been read, and follows the topics until that fails. Files that it does not come to
// are left for the next time.
func (u *UI) readOnce(ctx context.Context, seen positions, left *[]part) error {
	work, from, err := u.plan(seen)
	if err != nil {
		return err
	}
	*left = append(*left, work...)
	u.model.locked(func() { u.model.load.Files += len(work) })
	if !u.options.Live {
		u.countDeadLetters(math.MaxInt64)
		return u.loadFiles(ctx, left)
	}
	u.countDeadLetters(from.at(pipeline.TopicDLQ, 0))
	loading, stop := context.WithCancel(ctx)
	loaded := make(chan error, 1)
	go func() { loaded <- guarded(func() error { return u.loadFiles(loading, left) }) }()
	err = guarded(func() error { return u.follow(ctx, from, seen) }) // what loads the files ends before this does
	stop()
	if failed := <-loaded; !errors.Is(failed, context.Canceled) {
		err = errors.Join(err, failed)
	}
	return err
}

// A part is a file, of which records from an offset on are wanted.
type part struct {
	sink.File
	from int64
}

// plan lists what is to be loaded, and where following begins: at the ends of the files, or where it was.
func (u *UI) plan(seen positions) (work []part, from positions, err error) {
	from = positions{}
	for i, topics := range fromFiles {
		var parts []part
		for _, topic := range topics {
			files, err := sink.ListFiles(u.options.Parquet, topic)
			if err != nil {
				return nil, nil, err
			}
			ends, err := u.files.Ends(topic)
			if err != nil {
				return nil, nil, err
			}
			for i, f := range files {
				end := ends[f.Topic][f.Partition]
				if i+1 < len(files) && files[i+1].Topic == f.Topic && files[i+1].Partition == f.Partition {
					end = files[i+1].Start
				}
				if end <= ends[f.Topic][f.Partition] && end > seen.at(f.Topic, f.Partition) { // not one that came meanwhile
					parts = append(parts, part{f, seen.at(f.Topic, f.Partition)})
				}
			}
			for name, parts := range ends {
				for p, end := range parts {
					from.raise(name, p, max(end, seen.at(name, p)))
				}
			}
		}
		slices.SortStableFunc(parts, func(a, b part) int {
			if i == 0 { // curves grow at their ends
				return a.Time.Compare(b.Time)
			}
			return b.Time.Compare(a.Time)
		})
		work = append(work, parts...)
	}
	for name, parts := range from {
		for p, end := range parts {
			seen.raise(name, p, end)
		}
	}
	for _, topic := range []string{pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicState, pipeline.TopicEnvs, pipeline.TopicTasks("any"), pipeline.TopicDLQ} {
		ends, err := u.files.Ends(topic)
		if err != nil {
			return nil, nil, err
		}
		for name, parts := range ends {
			for p, end := range parts {
				from.raise(name, p, max(end, seen.at(name, p)))
			}
		}
	}
	return work, from, nil
}

// loadFiles reads files into the model, in order, and takes those it has done with from the list. A file that cannot be
// read is left out.
func (u *UI) loadFiles(ctx context.Context, left *[]part) error {
	m := u.model
	if err := u.loadStates(ctx); err != nil {
		return err
	}
	for len(*left) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		p := (*left)[0]
		*left = (*left)[1:]
		if (p.Topic == pipeline.TopicTraces || p.Topic == pipeline.TopicEvalTraces) && m.rollouts.Len() > m.rollouts.Max/10*9 {
			m.locked(func() { m.load.Skipped++; m.load.Loaded++ })
			continue
		}
		if err := guarded(func() error { return u.loadFile(ctx, p) }); err != nil {
			if ctx.Err() != nil {
				*left = append([]part{p}, *left...)
				return ctx.Err()
			}
			u.rt.Log.Warn("the page leaves out a file that it cannot read", "stage", Name, "file", p.Path, "error", err)
			m.locked(func() { m.load.Failed = p.Path })
		}
		m.locked(func() { m.load.Loaded++; m.rev++ })
	}
	m.rollouts.Forget()
	return nil
}

func (u *UI) loadFile(ctx context.Context, p part) error {
	m := u.model
	switch p.Topic {
	case pipeline.TopicTraces, pipeline.TopicEvalTraces:
		rollouts, err := history.Rollouts(p.File)
		if err != nil {
			return err
		}
		for i := range rollouts {
			if rollouts[i].ID.Offset >= p.from {
				m.rollouts.Add(rollouts[i])
			}
		}
	case pipeline.TopicOutcomes:
		outcomes, err := history.Outcomes(p.File, p.from)
		if err != nil {
			return err
		}
		m.rollouts.Outcome(outcomes...)
		m.locked(func() { m.run.Outcomes(outcomes) })
	case pipeline.TopicMetrics:
		points, err := history.Metrics(p.File)
		if err != nil {
			return err
		}
		m.locked(func() {
			for _, point := range points {
				m.run.Metric(point)
			}
		})
	default:
		records, err := history.Records(ctx, p.File)
		if err != nil {
			return err
		}
		m.locked(func() {
			for _, r := range records {
				m.small(r)
			}
		})
	}
	return nil
}

// loadStates reads the newest states of the stages: a stage that stands still writes none.
func (u *UI) loadStates(ctx context.Context) error {
	files, err := u.files.List(pipeline.TopicState)
	if err != nil {
		return err
	}
	newest := map[int32]sink.File{}
	for _, f := range files {
		newest[f.Partition] = f
	}
	for _, f := range newest {
		records, err := history.Records(ctx, f)
		if err != nil {
			return err
		}
		u.model.locked(func() {
			for _, r := range records {
				if s, ok := r.(*schemas.StageState); ok {
					u.model.meter.State(s, f.Time)
				}
			}
		})
	}
	return nil
}

// topics are those that are followed.
func (u *UI) topics() []string {
	topics := slices.Clone(followed)
	for _, env := range u.options.Envs {
		topics = append(topics, pipeline.TopicTasks(env))
	}
	return topics
}

// follow reads the topics from positions on until that fails.
func (u *UI) follow(ctx context.Context, from, seen positions) error {
	if err := u.ping(ctx); err != nil {
		return err
	}
	f, err := u.rt.FollowFrom(from, u.topics()...)
	if err != nil {
		return err
	}
	defer f.Close()
	u.begin(from)
	return u.listen(ctx, f, seen)
}

// begin says where following begins.
func (u *UI) begin(from positions) {
	u.model.locked(func() {
		for topic, parts := range from {
			for p, at := range parts {
				u.model.meter.Begin(topic, p, at)
			}
		}
		u.model.load.Live, u.model.load.Error = true, ""
	})
}

// listen takes what comes until that fails.
func (u *UI) listen(ctx context.Context, f *pipeline.Follower, seen positions) error {
	for heard := u.now(); ; {
		poll, cancel := context.WithTimeout(ctx, pollWait)
		recs, err := f.PollStamped(poll)
		if errors.Is(err, pipeline.ErrTransient) {
			<-poll.Done() // it may fail at once, again and again
			err = nil
		}
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("follow the run: %w", err)
		}
		if now := u.now(); len(recs) > 0 {
			heard = now
		} else if now.Sub(heard) > lookEvery { // a client waits for brokers that are gone, and says nothing
			if err := u.ping(ctx); err != nil {
				return err
			}
			heard = now
		}
		u.model.feed(recs, u.now())
		for _, r := range recs {
			seen.raise(r.Topic, r.Partition, r.Offset+1)
		}
	}
}

// unanswered begins the error of a ping.
const unanswered = "the brokers do not answer"

// ping reports an error where the brokers do not answer.
func (u *UI) ping(ctx context.Context) error {
	cl, err := u.rt.Client()
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, pingWait)
	defer cancel()
	if err := cl.Ping(ctx); err != nil {
		return fmt.Errorf("%s: %w", unanswered, err)
	}
	return nil
}
