package pipeline

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/prl-project/prl/schemas"
)

// TestMain turns the test binary into one instance of the toy stage where PRL_TOY names the brokers.
func TestMain(m *testing.M) {
	if brokers := os.Getenv("PRL_TOY"); brokers != "" {
		if err := toyMain(strings.Split(brokers, ","), os.Getenv("PRL_TOY_INSTANCE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			if errors.Is(err, ErrFenced) {
				os.Exit(3)
			}
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func toyMain(brokers []string, instance string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	dir, err := os.MkdirTemp("", "toy")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	blobs, err := OpenBlobs(dir)
	if err != nil {
		return err
	}
	rt := newRuntime(brokers, instance, blobs, os.Stderr)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// A toy is the toy stage in a process of its own.
type toy struct {
	cmd  *exec.Cmd
	done chan struct{}
	code int
}

func startToy(t *testing.T, brokers []string, instance string, env ...string) *toy {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), "PRL_TOY="+strings.Join(brokers, ","), "PRL_TOY_INSTANCE="+instance), env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &toy{cmd: cmd, done: make(chan struct{})}
	go func() {
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if os.Getenv("PRL_TEST_VERBOSE") != "" {
				fmt.Fprintln(os.Stderr, instance, lines.Text())
			}
		}
		_ = cmd.Wait() // the exit code says how it ended
		p.code = cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-p.done })
	return p
}

func (p *toy) signal(t *testing.T, sig os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		t.Fatalf("signal %v: %v", sig, err)
	}
}

// kill ends the process with SIGKILL and asserts that it was that which ended it.
func (p *toy) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	p.died(t)
}

func (p *toy) died(t *testing.T) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the process does not end")
	}
	if status := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended with %v, not by SIGKILL", p.cmd.ProcessState)
	}
}

// TestInvariant_SIGKILLAnywhere kills three instances over and over while work flows: no group is lost or doubled.
func TestInvariant_SIGKILLAnywhere(t *testing.T) {
	rt, cluster := testRuntime(t)
	rng := rand.New(rand.NewPCG(7, 7))
	toys := map[string]*toy{}
	for _, name := range []string{"a", "b", "c"} {
		toys[name] = startToy(t, cluster.ListenAddrs(), name)
	}
	const groups, kills = 300, 8
	for i, k := range rng.Perm(2 * groups) {
		produce(t, rt, trace(int64(k/2), k%2))
		if (i+1)%(2*groups/kills) == 0 {
			name := string(rune('a' + rng.IntN(3)))
			toys[name].kill(t)
			toys[name] = startToy(t, cluster.ListenAddrs(), name)
		}
	}
	oncePerGroup(t, committed(t, rt, TopicSamples, groups), groups)
	noMore(t, rt, TopicSamples, groups)
}

// TestCrashAroundTheCommit kills an instance just before and just after the end of its transaction.
func TestCrashAroundTheCommit(t *testing.T) {
	for _, place := range []string{"scorer.before-commit", "scorer.after-commit"} {
		t.Run(place, func(t *testing.T) {
			rt, cluster := testRuntime(t)
			first := startToy(t, cluster.ListenAddrs(), "a", "PRL_CRASH_AT="+place+":3")
			const groups = 30
			for i := range 2 * groups {
				produce(t, rt, trace(int64(i/2), i%2))
			}
			first.died(t)
			startToy(t, cluster.ListenAddrs(), "a")
			oncePerGroup(t, committed(t, rt, TopicSamples, groups), groups)
			noMore(t, rt, TopicSamples, groups)
		})
	}
}

// TestZombieIsFenced wakes an instance that slept while another took its name: it exits and has changed nothing.
func TestZombieIsFenced(t *testing.T) {
	rt, cluster := testRuntime(t)
	zombie := startToy(t, cluster.ListenAddrs(), "a")
	produce(t, rt, trace(0, 0), trace(0, 1))
	committed(t, rt, TopicSamples, 1)
	zombie.signal(t, syscall.SIGSTOP)
	startToy(t, cluster.ListenAddrs(), "a")
	produce(t, rt, trace(1, 0), trace(1, 1))
	committed(t, rt, TopicSamples, 2)
	zombie.signal(t, syscall.SIGCONT)
	produce(t, rt, trace(2, 0), trace(2, 1))
	select {
	case <-zombie.done:
	case <-time.After(30 * time.Second):
		t.Fatal("the zombie lives on")
	}
	if zombie.code != 3 {
		t.Fatalf("the zombie ended with code %d, want 3 (name in use)", zombie.code)
	}
	oncePerGroup(t, committed(t, rt, TopicSamples, 3), 3)
	noMore(t, rt, TopicSamples, 3)
}

// TestAbortRestoresCores refuses one commit of offsets: what the transaction held is done again, nothing is lost.
func TestAbortRestoresCores(t *testing.T) {
	for _, c := range []struct {
		name string
		key  kmsg.Key
		code int16
	}{
		{"offsets refused", kmsg.TxnOffsetCommit, kerr.UnknownServerError.Code},
		{"end refused", kmsg.EndTxn, kerr.UnknownServerError.Code},
	} {
		t.Run(c.name, func(t *testing.T) {
			rt, cluster := testRuntime(t)
			fired := refuseOnce(cluster, c.key, c.code, 3)
			stop := start(t, rt, toyConfig())
			const groups = 40
			for i := range 2 * groups {
				produce(t, rt, trace(int64(i/2), i%2))
			}
			oncePerGroup(t, committed(t, rt, TopicSamples, groups), groups)
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			select {
			case <-fired:
			default:
				t.Fatal("the fault did not fire")
			}
			noMore(t, rt, TopicSamples, groups)
		})
	}
}

// TestOlderBroker runs on a broker that must be told which offsets belong to a transaction (before KIP-890).
func TestOlderBroker(t *testing.T) {
	rt, cluster := testRuntime(t, kfake.MaxVersions(kversion.V3_6_0()))
	told := make(chan struct{}, 1000)
	cluster.ControlKey(int16(kmsg.AddOffsetsToTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		told <- struct{}{}
		return nil, nil, false
	})
	stop := start(t, rt, toyConfig())
	const groups = 20
	for i := range 2 * groups {
		produce(t, rt, trace(int64(i/2), i%2))
	}
	oncePerGroup(t, committed(t, rt, TopicSamples, groups), groups)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 {
		t.Error("the broker was told nothing")
	}
	stop = start(t, rt, toyConfig()) // what was committed holds
	produce(t, rt, trace(groups, 0), trace(groups, 1))
	oncePerGroup(t, committed(t, rt, TopicSamples, groups+1), groups+1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	noMore(t, rt, TopicSamples, groups+1)
}

// refuseOnce answers the nth request of a kind with an error; the channel closes when it did.
func refuseOnce(cluster *kfake.Cluster, key kmsg.Key, code int16, nth int) <-chan struct{} {
	fired := make(chan struct{})
	seen := 0
	cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if seen++; seen != nth {
			return nil, nil, false
		}
		close(fired)
		switch req := req.(type) {
		case *kmsg.EndTxnRequest:
			resp := req.ResponseKind().(*kmsg.EndTxnResponse)
			resp.ErrorCode = code
			return resp, nil, true
		case *kmsg.TxnOffsetCommitRequest:
			resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
			for _, t := range req.Topics {
				rt := kmsg.NewTxnOffsetCommitResponseTopic()
				rt.Topic, rt.TopicID = t.Topic, t.TopicID
				for _, p := range t.Partitions {
					rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
					rp.Partition, rp.ErrorCode = p.Partition, code
					rt.Partitions = append(rt.Partitions, rp)
				}
				resp.Topics = append(resp.Topics, rt)
			}
			return resp, nil, true
		}
		return nil, nil, false
	})
	return fired
}

// TestGroupForgotItsOffsets deletes the group: the newest state record says where to go on.
func TestGroupForgotItsOffsets(t *testing.T) {
	rt, _ := testRuntime(t)
	stop := start(t, rt, toyConfig())
	produce(t, rt, trace(0, 0), trace(0, 1), trace(3, 0))
	committed(t, rt, TopicSamples, 1)
	committed(t, rt, TopicState, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	deleteGroup(t, rt, rt.TopicName("scorer"))
	stop = start(t, rt, toyConfig())
	produce(t, rt, trace(3, 1))
	recs := committed(t, rt, TopicSamples, 2)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	seen := map[int64]int{}
	for _, r := range recs {
		seen[r.Value.(*schemas.SampleGroup).GroupID]++
	}
	if seen[0] != 1 || seen[3] != 1 {
		t.Fatalf("groups came %v times", seen)
	}
	noMore(t, rt, TopicSamples, 2)
}

// TestStateDeleted refuses to start where outputs exist and the state does not.
func TestStateDeleted(t *testing.T) {
	rt, _ := testRuntime(t)
	stop := start(t, rt, toyConfig())
	produce(t, rt, trace(0, 0), trace(0, 1))
	committed(t, rt, TopicSamples, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	deleteGroup(t, rt, rt.TopicName("scorer"))
	recreateTopic(t, rt, TopicState)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.Run(ctx); !errors.Is(err, ErrFatal) || !strings.Contains(err.Error(), "start a new run") {
		t.Fatalf("error %v", err)
	}
}
