package schedule

import (
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func TestSplitmix64(t *testing.T) {
	// The first three numbers of the reference generator from seed 0; its n-th is the hash of n times the golden gamma.
	const gamma = 0x9e3779b97f4a7c15
	for i, want := range []uint64{0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4, 0x06c45d188009454f} {
		if got := splitmix64(uint64(i) * gamma); got != want {
			t.Errorf("number %d is %#x, want %#x", i, got, want)
		}
	}
}

func TestSeedsDiffer(t *testing.T) {
	seen := map[int64]bool{}
	for run := range int64(3) {
		for _, eval := range []string{"", "a", "b"} {
			for group := range int64(100) {
				seed := GroupSeed(run, eval, group)
				for index := -1; index < 8; index++ {
					if s := RolloutSeed(seed, index); s < 0 || seen[s] {
						t.Fatalf("seed %d of run %d, eval %q, group %d, rollout %d", s, run, eval, group, index)
					} else {
						seen[s] = true
					}
				}
			}
		}
	}
}

func TestClockCountsTheTimeItRan(t *testing.T) {
	var c Clock
	at := time.UnixMilli(1_700_000_000_000)
	for _, step := range []struct {
		gap  time.Duration
		want int64
	}{{0, 0}, {250 * time.Millisecond, 250}, {time.Hour, 1250}, {-time.Hour, 1250}, {time.Second, 2250}} {
		at = at.Add(step.gap)
		if c.Advance(at); c.Ran != step.want {
			t.Errorf("ran %d ms after %v, want %d", c.Ran, step.gap, step.want)
		}
	}
}

func report(env, instance string, partition, concurrency int, low, next int64, unfinished ...byte) pipeline.Record {
	return pipeline.Record{Value: &schemas.StageState{
		Stage: "envserver", Topic: "tasks." + env, Instance: instance, Partition: partition, Concurrency: concurrency,
		LowOffset: low, NextOffset: next, Unfinished: unfinished,
	}}
}

// threeOpen is the deflated bitset of the offsets low, low+1 and low+2.
var threeOpen = []byte{0x63, 0x07, 0x00}

func take(q *Queues, n int) []int {
	count := make([]int, len(q.partitions))
	for range n {
		count[q.Next()]++
	}
	return count
}

func TestQueuesWithoutServersTakeTurns(t *testing.T) {
	for p, n := range take(NewQueues(5), 20) {
		if n != 4 {
			t.Errorf("partition %d got %d of 20 tasks", p, n)
		}
	}
}

func TestQueuesFollowConcurrencyAndLoad(t *testing.T) {
	e := NewEnvs([]string{"a"}, 4)
	e.Table(report("a", "big", 0, 6, 0, 0))
	e.Table(report("a", "big", 1, 6, 0, 0))
	e.Table(report("a", "small", 2, 2, 0, 0))
	e.Table(report("a", "small", 3, 2, 0, 0))
	got := take(e[0].Queues, 80)
	if got[0] != 30 || got[1] != 30 || got[2] != 10 || got[3] != 10 {
		t.Errorf("80 tasks go %v", got)
	}
	// The big server's first partition is finished; all else is as it was.
	for i := range int64(30) {
		e.Produced([]pipeline.Ref{{Topic: "tasks.a", Partition: 0, Offset: i}})
	}
	e.Table(report("a", "big", 0, 6, 30, 30))
	if got := take(e[0].Queues, 30); got[0] != 30 {
		t.Errorf("30 tasks go %v", got)
	}
}

func TestQueuesCountARecordOnce(t *testing.T) {
	q := NewQueues(1)
	e := Envs{{Name: "a", Queues: q}}
	take(q, 5)
	var refs []pipeline.Ref
	for o := range int64(5) {
		refs = append(refs, pipeline.Ref{Topic: "tasks.a", Offset: o * 2}) // markers of transactions lie between
	}
	e.Produced(refs[:3])
	e.Table(report("a", "s", 0, 1, 4, 7, threeOpen...)) // those at 0 and 2 are finished, 4 to 6 are not
	if load := q.partitions[0].load(); load != 3+0+2 {
		t.Errorf("load %d", load)
	}
	e.Produced(refs[3:4])
	if p := q.partitions[0]; p.load() != 3+1 || q.servers[p.server].load != p.load() {
		t.Errorf("load %d, server %d, after a record was named that the server had read", p.load(), q.servers[p.server].load)
	}
	e.Produced(append(refs[4:], pipeline.Ref{Topic: "tasks.a", Offset: 99}, pipeline.Ref{Topic: "tasks.b"}, pipeline.Ref{Topic: "tasks.a", Partition: 7}))
	if p := q.partitions[0]; p.load() != 3+1 || len(p.own) != 1 || q.servers[p.server].load != p.load() {
		t.Errorf("partition %+v", p)
	}
}

func TestQueuesIgnoreWhatMakesNoSense(t *testing.T) {
	e := NewEnvs([]string{"a"}, 2)
	e.Table(report("a", "s", 9, 1, 0, 0))
	e.Table(report("a", "s", 0, 1, 0, 64, 0xff, 0xff))
	e.Table(report("b", "s", 0, 1, 0, 0))
	e.Table(pipeline.Record{Value: &schemas.StageState{Stage: "scorer", Topic: "tasks.a"}})
	if got := take(e[0].Queues, 4); got[0] != 2 || got[1] != 2 {
		t.Errorf("tasks go %v", got)
	}
}

func TestEnvsAnnounced(t *testing.T) {
	e := NewEnvs([]string{"b", "a"}, 1)
	if e[0].Name != "a" || e.Index("b") != 1 || e.Index("c") != -1 {
		t.Errorf("environments %v", e)
	}
	for _, name := range []string{"a", "c", "b"} {
		if e.Announced() {
			t.Errorf("announced before %s", name)
		}
		e.Table(pipeline.Record{Value: &schemas.EnvInfo{Env: name}})
	}
	if !e.Announced() || !e[0].Heard {
		t.Error("not announced")
	}
}

func TestEndedTraceIsValid(t *testing.T) {
	version := int64(3)
	task := schemas.Task{Env: "a", GroupID: 4, GroupSize: 2, RolloutIndex: -1, GroupSeed: 5, PinVersion: &version, Step: 4, Wave: 1, WaveFirst: 4, WaveLast: 6, Policy: "base"}
	trace := Ended(&task, 1, 2, "v", "emitter", schemas.ErrorTimedOut, "late")
	if err := trace.Validate(); err != nil {
		t.Error(err)
	}
	b, err := schemas.Encode(trace)
	if err != nil {
		t.Fatal(err)
	}
	back, err := schemas.DecodeAs[*schemas.Trace](b)
	if err != nil {
		t.Fatal(err)
	}
	if back.RolloutIndex != 1 || back.Attempt != 2 || back.Seed != RolloutSeed(5, 1) || *back.PinVersion != 3 || back.WaveLast != 6 || back.Errors[0].Type != "timed_out" || back.Policy != "base" {
		t.Errorf("trace %+v", back)
	}
}
