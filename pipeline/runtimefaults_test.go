package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

// TestFaultsAreTold: what a process has, what it takes back, and with what it ends stand on the topic metrics for whoever reads.
func TestFaultsAreTold(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt := runtimeFor(t, cluster.ListenAddrs(), "one")
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	rt.OpenFaults()
	f, err := rt.Follow(TopicMetrics)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	done := make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go func() { defer close(done); rt.TellFaults(ctx, "sink") }()
	next := func() string {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			recs, err := f.Load(t.Context())
			if err != nil || time.Now().After(deadline) {
				t.Fatalf("nothing is told: %v", err)
			}
			told := ""
			for _, r := range recs {
				report, instance, at, ok := FaultOf(r.Value.(*schemas.MetricPoint))
				if !ok || instance != "one" || time.Since(at).Abs() > time.Minute {
					t.Fatalf("%+v of %s at %v: %v", report, instance, at, ok)
				}
				told += fmt.Sprintf("%s %s %s over=%v ended=%v;", report.Stage, report.Fault.Name, report.About, report.Over, report.Ended)
			}
			if told != "" {
				return told
			}
		}
	}
	want := func(told string) {
		t.Helper()
		if got := next(); got != told {
			t.Errorf("told %q, want %q", got, told)
		}
	}
	want("sink   over=true ended=false;")
	rt.Wrote("sink", fmt.Errorf("write x: %w", syscall.ENOSPC))
	want("sink DiskFull  over=false ended=false;")
	rt.Wrote("sink", errors.New("something else"))
	rt.Wrote("sink", nil)
	want("sink DiskFull  over=true ended=false;")
	rt.Fault("envserver", faults.EnvFails, "wordle", errors.New("no words"))
	want("envserver EnvFails wordle over=false ended=false;")
	rt.Ended("sink", fmt.Errorf("produce: %w", kerr.TopicAuthorizationFailed))
	want("sink NotAuthorized  over=false ended=true;")
	stop() // in order: what lives is over with the process, what it ended with is not
	<-done
	want("envserver EnvFails wordle over=true ended=false;")
}

// TestEndedShows: with which fault a stage ends.
func TestEndedShows(t *testing.T) {
	for want, err := range map[string]error{
		"":                   nil,
		"StageFailed":        Fatal("a bug"),
		"NotAuthorized":      Denied(kerr.GroupAuthorizationFailed),
		"DiskFull":           fmt.Errorf("write: %w", syscall.EDQUOT),
		"TrainerOutOfMemory": fmt.Errorf("trainer: %w", &faults.Error{Fault: faults.TrainerOutOfMemory, Err: Fatal("killed")}),
	} {
		rt := &Runtime{Log: runtimeFor(t, nil, "one").Log}
		rt.OpenFaults()
		rt.Ended("x", err)
		rt.Ended("y", fmt.Errorf("%w: another", ErrFenced))
		got := ""
		for _, r := range rt.Faults.Active() {
			got += r.Fault.Name
		}
		if got != want {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if !NoRoom(errors.New("torch: [Errno 28] no space left on device")) || NoRoom(nil) || NoRoom(errors.New("no")) {
		t.Error("what a full disk is")
	}
}

// keeper is a core that has a fault.
type keeper struct{ Core }

func (keeper) Faults() ([]faults.Fault, []faults.Report) {
	return []faults.Fault{faults.EnvServerDead}, []faults.Report{{Fault: faults.EnvServerDead, About: "wordle"}}
}

// TestFaultsGoWithTheCore: what a core has said is over here when its partition is another instance's.
func TestFaultsGoWithTheCore(t *testing.T) {
	rt := &Runtime{Log: runtimeFor(t, nil, "one").Log}
	rt.OpenFaults()
	u := &unit{core: keeper{}}
	p := &Processor{rt: rt, cfg: ProcessorConfig{Stage: "emitter"}, units: map[int32]*unit{0: u}}
	now := time.Now()
	for _, owned := range []bool{false, true, false, true} {
		u.owned, now = owned, now.Add(time.Second)
		p.keepFaults(now)
		if got := len(rt.Faults.Active()) > 0; got != owned {
			t.Errorf("with the core here %v: a fault %v", owned, got)
		}
	}
}

// TestBrokerWatch: no broker answers for three seconds while some are asked; one of several that is away is nothing.
func TestBrokerWatch(t *testing.T) {
	rt := &Runtime{Log: runtimeFor(t, nil, "one").Log}
	rt.OpenFaults()
	now := time.Unix(1000, 0)
	w := &brokerWatch{rt: rt, now: func() time.Time { return now }}
	down := func() bool { return len(rt.Faults.Active()) > 0 }
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	step := func(err error, answered bool, want bool) {
		t.Helper()
		now = now.Add(2 * time.Second)
		if err != nil {
			w.OnBrokerConnect(kgo.BrokerMetadata{}, 0, nil, err)
		}
		if answered {
			w.OnBrokerRead(kgo.BrokerMetadata{}, 0, 1, 0, 0, nil)
		}
		if down() != want {
			t.Errorf("down: %v, want %v", down(), want)
		}
	}
	step(refused, false, false)
	step(refused, true, false)
	step(refused, true, false)
	step(refused, false, false)
	step(kgo.ErrClientClosed, false, false)
	step(refused, false, true)
	step(refused, false, true)
	step(nil, true, false)
}
