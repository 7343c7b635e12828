package pipeline

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// fatal runs a processor until it stops with an error that is ErrFatal and says what is wanted.
func fatal(t *testing.T, rt *Runtime, cfg ProcessorConfig, want string) {
	t.Helper()
	p, err := NewProcessor(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Run(ctx); !errors.Is(err, ErrFatal) || !strings.Contains(err.Error(), want) {
		t.Fatalf("error %v, want %q", err, want)
	}
}

// worked runs a processor until groups 0 to n-1 are decided, and stops it.
func worked(t *testing.T, rt *Runtime, n int) {
	t.Helper()
	stop := start(t, rt, toyConfig())
	oncePerGroup(t, committed(t, rt, TopicSamples, n), n)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// foreign begins a transaction of another program that writes to one partition, and leaves it open until the test ends.
func foreign(t *testing.T, rt *Runtime, topic string, partition int32) {
	t.Helper()
	cl := client(t, rt, kgo.TransactionalID(rt.TopicName("foreign")), kgo.TransactionTimeout(5*time.Minute))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	r := &kgo.Record{Topic: rt.TopicName(topic), Partition: partition, Key: []byte("foreign"), Value: []byte("foreign")}
	if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.EndTransaction(context.Background(), kgo.TryAbort) }) // the broker may be gone
}

// TestRestoreWaitsForNoStranger restarts a stage while another program holds a transaction open before the state record
// and the unfinished records: readers of committed records would wait until it ends.
func TestRestoreWaitsForNoStranger(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		foreign(t, rt, TopicState, statePartition("scorer"))
		produce(t, rt, append(pairsOf(0, 0), trace(1, 0))...)
		worked(t, rt, 1)
		stop := start(t, rt, toyConfig())
		produce(t, rt, trace(1, 1))
		once(t, rt, 2)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestGroupForgotItsOffsets deletes the group: the newest state record says where to go on. It is behind a transaction
// that another program holds open, which hides it from readers of committed records.
func TestGroupForgotItsOffsets(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		produce(t, rt, pairsOf(0, 0)...)
		worked(t, rt, 1)
		foreign(t, rt, TopicState, statePartition("scorer"))
		produce(t, rt, append(pairsOf(1, 3), trace(6, 0))...)
		worked(t, rt, 4)
		deleteGroup(t, rt, rt.TopicName("scorer"))
		stop := start(t, rt, toyConfig())
		produce(t, rt, append(pairsOf(4, 5), trace(6, 1))...)
		once(t, rt, 7)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestFirstTransactionAborted kills an instance in the first transaction there ever was: what it wrote is no proof that
// state was deleted, and what of its state is there does not count.
func TestFirstTransactionAborted(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		produce(t, rt, pairsOf(0, 3)...)
		startToy(t, rt, "one", "PRL_CRASH_AT=scorer.before-commit:1").died(t)
		worked(t, rt, 4)
		noMore(t, rt, TopicSamples, 4)
	})
}

// TestStateDeleted refuses to start where outputs exist and the state does not.
func TestStateDeleted(t *testing.T) {
	rt, _ := testRuntime(t)
	produce(t, rt, pairsOf(0, 0)...)
	worked(t, rt, 1)
	deleteGroup(t, rt, rt.TopicName("scorer"))
	recreateTopic(t, rt, TopicState)
	fatal(t, rt, toyConfig(), "start a new run")
}

// deleteRecords deletes the records of a partition below an offset.
func deleteRecords(t *testing.T, rt *Runtime, topic string, partition int32, before int64) {
	t.Helper()
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: rt.TopicName(topic), Partition: partition, At: before})
	resp, err := kadm.NewClient(client(t, rt)).DeleteRecords(t.Context(), offsets)
	if err == nil {
		err = resp.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRecordsDeleted stops a stage whose records were deleted: before it read them, and before it finished them. It never
// jumps over them.
func TestRecordsDeleted(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		t.Run("unread", func(t *testing.T) {
			produce(t, rt, pairsOf(0, 0)...)
			worked(t, rt, 1)
			produce(t, rt, pairsOf(3, 4)...)
			deleteRecords(t, rt, TopicTraces, 0, 3)
			fatal(t, rt, toyConfig(), "traces/0: records this stage has not read were deleted")
		})
		t.Run("unfinished", func(t *testing.T) {
			rt := runOn(t, rt.Brokers)
			produce(t, rt, append([]schemas.Record{trace(3, 0)}, pairsOf(0, 0)...)...)
			worked(t, rt, 1)
			deleteRecords(t, rt, TopicTraces, 0, 2)
			fatal(t, rt, toyConfig(), "records that this stage has not finished were deleted")
		})
	})
}

// TestForeignCommit stops a stage whose group another program commits to.
func TestForeignCommit(t *testing.T) {
	rt, _ := testRuntime(t)
	var offsets kadm.Offsets
	offsets.Add(kadm.Offset{Topic: rt.TopicName(TopicTraces), Partition: 0, At: 0, Metadata: "mine"})
	if err := kadm.NewClient(client(t, rt)).CommitAllOffsets(t.Context(), rt.TopicName("scorer"), offsets); err != nil {
		t.Fatal(err)
	}
	fatal(t, rt, toyConfig(), `"mine", which prl did not write: another program commits to this group`)
}

// TestChangedSetting starts a stage with a setting under which records that were open are decided at once: what they
// decide would have to be emitted while restoring.
func TestChangedSetting(t *testing.T) {
	rt, _ := testRuntime(t)
	produce(t, rt, append(pairsOf(0, 0), trace(3, 0))...)
	worked(t, rt, 1)
	cfg := toyConfig()
	cfg.New = func(n int32, state []byte) (Core, error) {
		core, err := newPairs(n, state)
		core.(*pairs).need = 1
		return core, err
	}
	fatal(t, rt, cfg, "was unfinished and is decided now: a setting of the run was changed")
}
