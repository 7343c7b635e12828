package tracing

import (
	"context"
	"log/slog"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

const (
	// maxQueue is how many spans wait for the collector.
	maxQueue = 1 << 13
	// maxBatch is how many go to it at once.
	maxBatch = 512
	// batchEvery is how long a span waits for others at most.
	batchEvery = time.Second
	// complainEvery is how often it is logged that spans are lost.
	complainEvery = time.Minute
)

// What became of spans.
const (
	sent    = "sent"
	dropped = "dropped" // the queue was full
	failed  = "failed"  // the collector did not take them
)

// A queue brings spans to a collector, in the background. It never makes anybody wait.
type queue struct {
	exporter sdktrace.SpanExporter
	timeout  time.Duration // of one batch, and of the end
	log      *slog.Logger
	count    func(result string, spans int)

	spans   chan sdktrace.ReadOnlySpan
	flushes chan chan struct{} // each closed when all that was there before it is sent
	ending  chan struct{}      // closed when no more come
	ended   chan struct{}      // closed when the last are sent or given up
	last    context.Context
	giveUp  context.CancelFunc
	refused time.Time // when it was logged last that spans are lost
}

func newQueue(e sdktrace.SpanExporter, timeout time.Duration, log *slog.Logger, count func(string, int)) *queue {
	q := &queue{
		exporter: e, timeout: timeout, log: log, count: count,
		spans: make(chan sdktrace.ReadOnlySpan, maxQueue), flushes: make(chan chan struct{}), ending: make(chan struct{}), ended: make(chan struct{}),
	}
	q.last, q.giveUp = context.WithCancel(context.Background())
	go q.run()
	return q
}

// OnStart implements sdktrace.SpanProcessor.
func (q *queue) OnStart(context.Context, sdktrace.ReadWriteSpan) {}

// OnEnd implements sdktrace.SpanProcessor.
func (q *queue) OnEnd(s sdktrace.ReadOnlySpan) {
	select {
	case q.spans <- s:
	default:
		q.count(dropped, 1)
	}
}

// Shutdown implements sdktrace.SpanProcessor; close is what ends a queue, of which several providers have the use.
func (q *queue) Shutdown(context.Context) error { return nil }

// ForceFlush implements sdktrace.SpanProcessor.
func (q *queue) ForceFlush(context.Context) error { return nil }

// flush sends what waits now.
func (q *queue) flush() {
	done := make(chan struct{})
	select {
	case q.flushes <- done:
	case <-q.ended:
		return
	}
	select {
	case <-done:
	case <-q.ended:
	}
}

// close sends what waits, for as long as a batch may take, and gives up the rest. It is called once.
func (q *queue) close() {
	t := time.AfterFunc(q.timeout, q.giveUp)
	defer t.Stop()
	close(q.ending)
	<-q.ended
	q.giveUp()
}

// run sends batches until the end, and then what is left.
func (q *queue) run() {
	defer close(q.ended)
	every := time.NewTicker(batchEvery)
	defer every.Stop()
	var batch []sdktrace.ReadOnlySpan
	for {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); len(batch) >= maxBatch {
				batch = q.send(batch)
			}
		case <-every.C:
			batch = q.send(batch)
		case done := <-q.flushes:
			batch = q.rest(batch)
			close(done)
		case <-q.ending:
			q.rest(batch)
			return
		}
	}
}

// rest sends a batch and all that waits.
func (q *queue) rest(batch []sdktrace.ReadOnlySpan) []sdktrace.ReadOnlySpan {
	for {
		select {
		case s := <-q.spans:
			if batch = append(batch, s); len(batch) >= maxBatch {
				batch = q.send(batch)
			}
		default:
			return q.send(batch)
		}
	}
}

// send returns the batch that is begun next.
func (q *queue) send(batch []sdktrace.ReadOnlySpan) (next []sdktrace.ReadOnlySpan) {
	if len(batch) == 0 {
		return nil
	}
	if q.last.Err() != nil {
		q.count(failed, len(batch))
		return nil
	}
	ctx, cancel := context.WithTimeout(q.last, q.timeout)
	defer cancel()
	err := q.exporter.ExportSpans(ctx, batch)
	if err == nil {
		q.count(sent, len(batch))
		return nil
	}
	q.count(failed, len(batch))
	if now := time.Now(); now.Sub(q.refused) >= complainEvery {
		q.refused = now
		q.log.Warn("spans are lost: the collector does not take them; the run goes on without them (tracing.endpoint says where it is)", "error", err)
	}
	return nil
}
