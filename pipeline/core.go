package pipeline

import (
	"errors"
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// Ref names a record of an input topic.
type Ref struct {
	Topic     string // without the run's prefix
	Partition int32
	Offset    int64
}

func (r Ref) String() string { return fmt.Sprintf("%s/%d@%d", r.Topic, r.Partition, r.Offset) }

// Record is a decoded record of an input topic or a table.
type Record struct {
	Ref
	Key   string
	Value schemas.Record
	Trace tracing.Context // the span it names, where the process traces; no result may depend on it
}

// Core is the logic of a stage for one input partition: records in, records out, without Kafka, clocks or goroutines.
//
// What a core knows is what it can build again from two things: the bytes of State, and the records it has not finished,
// fed once more in the order of their offsets. So State holds only what finished records contributed, and Process gives
// the same output for the same history (pipelinetest.Check holds a core to that).
type Core interface {
	// Process takes the next record and says with out.Finish when it, or an earlier one, is no longer needed.
	// An error that is not Fatal makes the record poison: it goes to dlq with the error, what this call emitted is
	// dropped, and the stage moves on. A core that returns an error has not changed.
	Process(r Record, out *Out) error
	// State is the core's own part of its state record: what finished records have left behind. Small.
	State() ([]byte, error)
}

// A TableReader is a core that wants the records of the stage's tables. They are read from the start, outside the
// committed offsets; the first ones come before any other record.
type TableReader interface {
	Table(r Record) error
}

// A Ticker is a core with a clock (the emitter, the eval stage, environment servers): Tick is called several times a
// second, and after every batch of records.
type Ticker interface {
	Tick(now time.Time, out *Out) error
}

// A Waiter is a core that can say what it waits for before it does anything at all; empty once it works. The shell logs
// it, so that a run that stands still says why.
type Waiter interface {
	Waiting() string
}

// An Undecoder is a core that wants to know of records that could not be decoded; r.Value is nil. They are in dlq and
// finished already.
type Undecoder interface {
	Undecodable(r Record, reason error, out *Out) error
}

// A ProduceObserver is a core that wants to know where its emissions went: refs are aligned with Out.Emitted of one
// transaction, and come after its commit. An optimisation only: after a restart it hears nothing of earlier ones.
type ProduceObserver interface {
	Produced(refs []Ref)
}

// A Recycler is a core that uses the memory of what it emitted again. The shell encodes an emission of such a core before it
// feeds it the next record, and then gives it back: Recycle takes the tensors out of v, and the core may write to their memory.
// An optimisation only: what is never given back stays as it is.
type Recycler interface {
	Recycle(v schemas.Record)
}

// A Counter is a core that counts the records that changed nothing, by why. The counts begin at 0 with the core and only
// grow; the shell adds them up in prl_stage_passed_over_records_total.
type Counter interface {
	Counts() map[string]int64
}

// An AsyncCore works on records in the background and finishes them in Tick. As nothing it made is in the transaction,
// it is kept when one aborts.
type AsyncCore interface {
	Core
	Ticker
	// Committed says that the state State returned last is durable.
	Committed()
	// Revoking says that the partition is about to be given away: State, called next and for the last time, is what
	// the next owner gets. Work that runs goes on; what it finishes is no longer reported here.
	Revoking()
}

// Out collects what a core emits and finishes.
type Out struct {
	Emitted  []Emission
	Finished []Ref
	touched  bool
}

// An Emission is a record for an output topic.
type Emission struct {
	Topic     string
	Partition int32 // AutoPartition: as the topic's table entry says
	Value     schemas.Record
}

// AutoPartition leaves the partition to the topic's rule.
const AutoPartition int32 = -1

// Emit writes v to topic, keyed and partitioned by the topic's rule.
func (o *Out) Emit(topic string, v schemas.Record) { o.EmitTo(topic, AutoPartition, v) }

// EmitTo writes v to one partition of topic.
func (o *Out) EmitTo(topic string, partition int32, v schemas.Record) {
	o.Emitted = append(o.Emitted, Emission{topic, partition, v})
}

// Finish says that the core does not need the record again.
func (o *Out) Finish(r Ref) { o.Finished = append(o.Finished, r) }

// Touch says that State has changed although nothing was emitted or finished (by a Tick).
func (o *Out) Touch() { o.touched = true }

// Changed reports whether there is anything to commit.
func (o *Out) Changed() bool { return o.touched || len(o.Emitted) > 0 || len(o.Finished) > 0 }

// Errors say who acts: the sentinels below are matched with errors.Is.
var (
	// ErrFatal stops the stage; the error says what to do.
	ErrFatal = errors.New("fatal")
	// ErrFenced ends the process: another one has taken its name.
	ErrFenced = errors.New("name in use")
	// ErrTransient says that something outside the brokers (the blob store, the schema registry) does not answer now: no
	// fault of the record at hand, which comes again.
	ErrTransient = errors.New("not available now")
)

// Fatal marks an error that stops the stage.
func Fatal(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrFatal, fmt.Errorf(format, args...))
}
