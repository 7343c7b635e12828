package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/driver"
	"gocloud.dev/gcerrors"

	"github.com/prl-project/prl/schemas"
)

// disk is a blob store in memory that can be full or slow, and whose reads can break.
type disk struct {
	driver.Bucket
	mu    sync.Mutex
	blobs map[string][]byte
	full  bool
	slow  time.Duration // of every write
	wrote int
	reads func(offset int64, r io.Reader) io.Reader // what is read of a range instead of r; nil for r
}

func (d *disk) fill(full bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = full
}

func (d *disk) written() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.wrote
}

func (d *disk) Close() error            { return nil }
func (d *disk) ErrorAs(error, any) bool { return false }

func (d *disk) ErrorCode(err error) gcerrors.ErrorCode {
	if err == io.ErrUnexpectedEOF {
		return gcerrors.NotFound
	}
	return gcerrors.Unknown
}

func (d *disk) Attributes(_ context.Context, key string) (*driver.Attributes, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.blobs[key]
	if !ok {
		return nil, io.ErrUnexpectedEOF
	}
	return &driver.Attributes{ModTime: time.Now(), Size: int64(len(b))}, nil
}

type reading struct {
	io.Reader
	size int
}

func (reading) Close() error { return nil }
func (reading) As(any) bool  { return false }
func (r reading) Attributes() *driver.ReaderAttributes {
	return &driver.ReaderAttributes{Size: int64(r.size), ModTime: time.Now()}
}

func (d *disk) NewRangeReader(_ context.Context, key string, offset, length int64, _ *driver.ReaderOptions) (driver.Reader, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	b, ok := d.blobs[key]
	if !ok {
		return nil, io.ErrUnexpectedEOF
	}
	if length < 0 {
		length = int64(len(b)) - offset
	}
	var r io.Reader = io.NewSectionReader(bytes.NewReader(b), offset, length)
	if d.reads != nil {
		r = d.reads(offset, r)
	}
	return reading{r, len(b)}, nil
}

type writing struct {
	bytes.Buffer
	ctx  context.Context
	disk *disk
	key  string
}

func (d *disk) NewTypedWriter(ctx context.Context, key, _ string, _ *driver.WriterOptions) (driver.Writer, error) {
	return &writing{ctx: ctx, disk: d, key: key}, nil
}

func (w *writing) Close() error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	d := w.disk
	d.mu.Lock()
	slow := d.slow
	d.mu.Unlock()
	time.Sleep(slow)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.full {
		return fmt.Errorf("write %s: %w", w.key, syscall.ENOSPC)
	}
	d.blobs[w.key] = w.Bytes()
	d.wrote++
	return nil
}

// onDisk is a run whose blobs are on a disk that can be full or slow.
func onDisk(t *testing.T) (*Runtime, *disk) {
	t.Helper()
	rt, _ := testRuntime(t)
	d := &disk{blobs: map[string][]byte{}}
	rt.Blobs = newBlobs(blob.NewBucket(d), "")
	rt.Health = &Health{}
	return rt, d
}

// copier is a core that emits a trace too large for a record for each one it gets.
type copier struct{}

func (copier) Process(r Record, out *Out) error {
	big := bigTrace(tooLong)
	big.GroupID = r.Value.(*schemas.Trace).GroupID
	out.Emit(TopicEvalTraces, big)
	out.Finish(r.Ref)
	return nil
}

func (copier) State() ([]byte, error) { return nil, nil }

func copierConfig() ProcessorConfig {
	cfg := toyConfig()
	cfg.New = func(int32, []byte) (Core, error) { return copier{}, nil }
	return cfg
}

// TestFullDisk runs a stage whose blob store takes nothing: it waits where it is, log and /readyz say for what, and it
// goes on when there is space.
func TestFullDisk(t *testing.T) {
	rt, d := onDisk(t)
	log := listen(rt)
	d.fill(true)
	stop := start(t, rt, copierConfig())
	produce(t, rt, trace(0, 0), trace(1, 0), trace(2, 0))
	await(t, "the stage to say what it waits for", func() bool { return log.has("no space left on device") })
	if stages, all := rt.Health.snapshot(); all || stages[healthBlobs] {
		t.Errorf("it waits and is ready: %v", stages)
	}
	d.fill(false)
	seen := map[int64]int{}
	for _, r := range committed(t, rt, TopicEvalTraces, 3) {
		trace := r.Value.(*schemas.Trace)
		seen[trace.GroupID]++
		if len(trace.Nodes[0].TokenIDs) != 4*tooLong {
			t.Errorf("the tokens of group %d are lost", trace.GroupID)
		}
	}
	if len(seen) != 3 {
		t.Errorf("groups came %v times", seen)
	}
	if stages, all := rt.Health.snapshot(); !all {
		t.Errorf("it works and is not ready: %v", stages)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	noMore(t, rt, TopicEvalTraces, 3)
	if log.has("stage starts over") {
		t.Error("it started over")
	}
}

// TestFullDiskHoldsNobody has a blob store that never takes anything. What a core has emitted waits for it while rebalances are
// held: for a while, and then the session starts over.
func TestFullDiskHoldsNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &Runtime{Run: DefaultRunConfig(), Blobs: newBlobs(blob.NewBucket(&disk{full: true}), ""), Log: slog.New(slog.DiscardHandler)}
		p := &Processor{rt: rt, cfg: ProcessorConfig{Stage: "scorer"}}
		u := &unit{core: copier{}, out: Out{Emitted: []Emission{{TopicEvalTraces, AutoPartition, bigTrace(tooLong)}}}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		start := time.Now()
		err := u.encode(ctx, p)
		if took := time.Since(start); !errors.Is(err, ErrTransient) || took > prepareDeadline+putDeadline {
			t.Errorf("it gave up after %v: %v", took, err)
		}
	})
}

// TestStopOnAFullDisk stops a stage that waits for its blob store: it does not wait any longer, and what it had in hand
// comes again.
func TestStopOnAFullDisk(t *testing.T) {
	rt, d := onDisk(t)
	log := listen(rt)
	d.fill(true)
	stop := start(t, rt, copierConfig())
	produce(t, rt, trace(0, 0))
	await(t, "the stage to say what it waits for", func() bool { return log.has("no space left on device") })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	d.fill(false)
	stop = start(t, rt, copierConfig())
	committed(t, rt, TopicEvalTraces, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	noMore(t, rt, TopicEvalTraces, 1)
}

// TestBlobsAreWrittenBeforeTheTransaction has a blob store that takes longer for one blob than a transaction may last.
func TestBlobsAreWrittenBeforeTheTransaction(t *testing.T) {
	rt, d := onDisk(t)
	log := listen(rt)
	cfg := copierConfig()
	cfg.TransactionTimeout = time.Second
	d.slow = cfg.TransactionTimeout
	stop := start(t, rt, cfg)
	produce(t, rt, trace(0, 0))
	committed(t, rt, TopicEvalTraces, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if d.written() == 0 || log.has("stage starts over") {
		t.Errorf("%d blobs were written; %s", d.written(), log.text.String())
	}
}
