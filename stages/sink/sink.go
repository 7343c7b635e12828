// Package sink writes every record of a run to Parquet exactly once, and a finished file is never touched again.
//
// Guarantees: each record that was committed to a topic of the run is in exactly one file (I4: whatever was killed,
// and however many sinks run); what cannot be decoded is a row with its bytes and the reason (I5); fields of a task
// that nobody knows are kept (I8: the task is its JSON text).
//
// Reads: every topic of the run, committed records only, from the start; new topics are found while it runs.
// Writes: <dir>/<table>/<topic>-<topic id>-<partition>-<start>.parquet, and nothing to Kafka. A table is a kind of
// record (tasks of all environments are one table), its columns are the fields of the record's schema.
// Key: topic, partition and start position name a file. Several sinks divide the partitions (sink.share).
// State: the files. Each says in its metadata where it ends, and the next one starts there, gaps of the offsets
// included; it is created only if there is none of that name. So the files of a partition are one chain, whoever
// writes them: a sink that comes second throws its buffer away, looks where the chain ends now, and goes on there.
// On replay: nothing is read twice. After a kill the records that were in memory are read again.
//
// Tensors that were too large for a Kafka record stay in the blob store; the column blobs says where.
package sink

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

const (
	stage = "sink"
	// pollWait bounds a wait for records.
	pollWait = 250 * time.Millisecond
	// pollRecords bounds what one poll may carry a file above its limits.
	pollRecords = 5000
	// discoverEvery is how often new topics are looked for.
	discoverEvery = 5 * time.Second
	// retryEvery is how long a file waits that cannot be written for now.
	retryEvery = time.Second
)

// Sink writes a run's topics to Parquet. It uses Kafka directly: it reads all partitions by assignment and its
// positions are in the files, so neither a consumer group nor a transaction has a part in it.
type Sink struct {
	rt      *pipeline.Runtime
	cfg     Config
	share   share
	metrics *metrics
}

// New makes a sink; it does no I/O.
func New(rt *pipeline.Runtime, cfg Config) (*Sink, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Dir == "" {
		cfg.Dir = filepath.Join("runs", rt.Run.Name, "parquet")
	}
	part, err := parseShare(cfg.Share)
	if err != nil {
		return nil, err
	}
	rt.Health.Set(stage, false)
	m, err := newMetrics(rt.Registry)
	return &Sink{rt, cfg, part, m}, err
}

// Run writes until ctx ends. Then it reads on to where the topics ended at that moment, under a deadline, writes
// everything, and returns nil: what was committed before the stop can be queried after it.
func (s *Sink) Run(ctx context.Context) error {
	if err := WriteSchemas(s.cfg.Dir); err != nil {
		return err
	}
	cl, err := s.rt.Client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return err
	}
	defer cl.Close()
	defer s.rt.Health.Set(stage, false)
	r := &reader{Sink: s, cl: cl, chains: map[string]map[int32]*Chain{}, ids: map[string][16]byte{}, lags: map[string]map[int32]int64{}}
	var due time.Time
	for ctx.Err() == nil {
		if now := time.Now(); now.After(due) {
			if err := r.discover(ctx); err != nil {
				return err
			}
			due = now.Add(discoverEvery)
			s.rt.Health.Set(stage, true)
		}
		if err := r.poll(ctx, r.patience(time.Now())); err != nil {
			return err
		}
		if _, err := r.flush(ctx, r.due(time.Now())); err != nil {
			return err
		}
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Duration(s.cfg.Drain))
	defer cancel()
	return r.drain(stop)
}

// reader is a running sink.
type reader struct {
	*Sink
	cl     *kgo.Client
	chains map[string]map[int32]*Chain // by full topic name and partition
	ids    map[string][16]byte         // by full topic name
	lags   map[string]map[int32]int64  // by topic and partition
}

// poll takes what comes within a wait.
func (r *reader) poll(ctx context.Context, wait time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	start := time.Now()
	fetches := r.cl.PollRecords(ctx, pollRecords)
	r.rt.Metrics.Waited.WithLabelValues(stage).Add(time.Since(start).Seconds())
	for _, e := range fetches.Errors() {
		if err := r.fetchError(e); err != nil {
			return err
		}
	}
	now := time.Now()
	var err error
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		chain := r.chains[p.Topic][p.Partition]
		if chain == nil {
			return // of a fetch that failed as a whole
		}
		for _, rec := range p.Records {
			if err != nil {
				return
			}
			if rec.Attrs.IsControl() {
				err = chain.Skip(rec.Offset + 1)
				continue
			}
			err = chain.Append(rowOf(rec), now)
			r.rt.Metrics.Records.WithLabelValues(stage, r.rt.BaseName(p.Topic)).Inc()
		}
		if chain != nil { // an error of the client's own comes with a partition of no topic
			r.lag(r.rt.BaseName(p.Topic), p.Partition, pipeline.Behind(p, chain.next))
		}
	})
	return err
}

// patience is how long a poll may wait for more: until a file is due.
func (r *reader) patience(now time.Time) time.Duration {
	wait := pollWait
	r.each(func(_ string, c *Chain) {
		if len(c.rows) > 0 {
			wait = min(wait, c.first.Add(time.Duration(r.cfg.MaxAge)).Sub(now))
		}
	})
	return wait
}

func rowOf(rec *kgo.Record) Row {
	row := Row{Offset: rec.Offset, Time: rec.Timestamp, Key: rec.Key, Value: rec.Value}
	for _, h := range rec.Headers {
		row.Headers = append(row.Headers, Header{h.Key, h.Value})
	}
	return row
}

// fetchError tells what ends the sink from what the client gets over by itself.
func (r *reader) fetchError(e kgo.FetchError) error {
	var loss *kgo.ErrDataLoss
	switch {
	case ended(e.Err):
		return nil
	case errors.Is(e.Err, kerr.OffsetOutOfRange), errors.As(e.Err, &loss):
		return r.lost(e.Topic, e.Partition, e.Err)
	case errors.Is(e.Err, kgo.ErrClientClosed):
		return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
	}
	if err := pipeline.Denied(e.Err, pipeline.ReadTopic(e.Topic)); errors.Is(err, pipeline.ErrFatal) {
		return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, err)
	}
	r.rt.Log.Warn("fetch failed; the client tries again", "stage", stage, "topic", e.Topic, "partition", e.Partition, "error", e.Err)
	return nil
}

// due picks the chains whose file is full or old, and the largest ones while memory holds too much.
func (r *reader) due(now time.Time) []*Chain {
	var due, rest []*Chain
	held := int64(0)
	r.each(func(_ string, c *Chain) {
		switch {
		case len(c.rows) == 0:
		case len(c.rows) >= r.cfg.MaxRows, c.bytes >= r.cfg.MaxBytes, now.Sub(c.first) >= time.Duration(r.cfg.MaxAge):
			due = append(due, c)
		default:
			rest = append(rest, c)
			held += c.bytes
		}
	})
	r.metrics.buffered(held, due)
	for held > r.cfg.MaxBufferedBytes {
		largest := 0
		for i, c := range rest {
			if c.bytes > rest[largest].bytes {
				largest = i
			}
		}
		held -= rest[largest].bytes
		due = append(due, rest[largest])
		rest = append(rest[:largest], rest[largest+1:]...)
	}
	return due
}

// flush publishes the buffers of chains. Where another sink was first, the chain goes on at its new end; taken says how
// often that was so. It looks at the topics first, so that no file gets records of a topic that was made again.
func (r *reader) flush(ctx context.Context, chains []*Chain) (taken int, err error) {
	if len(chains) == 0 {
		return 0, nil
	}
	if err := r.discover(ctx); err != nil {
		return 0, err
	}
	for _, c := range chains {
		rows, start := len(c.rows), c.file.start
		unreadable, err := r.publish(ctx, c)
		if errors.Is(err, ErrTaken) {
			taken++
			if err := c.Reopen(); err != nil {
				return taken, err
			}
			r.rt.Log.Info("another sink was first; going on behind it", "topic", c.file.topic, "partition", c.file.partition, "start", start, "position", c.next)
			r.cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{
				r.rt.TopicName(c.file.topic): {c.file.partition: {Epoch: -1, Offset: c.next}}})
			continue
		}
		if err != nil {
			return taken, err
		}
		if unreadable > 0 {
			r.rt.Log.Warn("records could not be read; their bytes are in kafka_raw", "topic", c.file.topic, "partition", c.file.partition, "start", start, "records", unreadable)
		}
		r.metrics.written(c.table.name, rows)
		r.rt.Log.Debug("file written", "topic", c.file.topic, "partition", c.file.partition, "start", start, "records", rows)
	}
	return taken, nil
}

// publish flushes a chain. While its records cannot be decoded for now, or the disk is full, it waits and tries again
// until ctx ends: what is buffered stays, nothing more is read, and log and /readyz say so.
func (r *reader) publish(ctx context.Context, c *Chain) (unreadable int, err error) {
	for {
		unreadable, err = c.Flush()
		r.rt.Wrote(stage, err)
		if !errors.Is(err, pipeline.ErrTransient) && !errors.Is(err, syscall.ENOSPC) && !errors.Is(err, syscall.EDQUOT) {
			r.rt.Health.Set(stage, err == nil || errors.Is(err, ErrTaken))
			return unreadable, err
		}
		r.rt.Health.Set(stage, false)
		r.rt.Log.Log(ctx, level(err), "file not written yet; it is tried again", "stage", stage, "topic", c.file.topic, "partition", c.file.partition, "error", err)
		select {
		case <-ctx.Done():
			return unreadable, err
		case <-time.After(retryEvery):
		}
	}
}

// level is that of the log for a file that could not be written; a full disk is told as a fault, once a minute.
func level(err error) slog.Level {
	if pipeline.NoRoom(err) {
		return slog.LevelDebug
	}
	return slog.LevelWarn
}

func (r *reader) each(f func(topic string, c *Chain)) {
	for topic, partitions := range r.chains {
		for _, c := range partitions {
			f(topic, c)
		}
	}
}

func ended(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
