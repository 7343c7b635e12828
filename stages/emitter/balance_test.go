package emitter

import (
	"bytes"
	"compress/flate"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A simServer plays one record per slot at a time, oldest first, and reports twice a second.
type simServer struct {
	name       string
	partitions []int32
	each       time.Duration
	slots      int
	running    []simTask
	waiting    []simTask
}

type simTask struct {
	ref   pipeline.Ref
	group int64
	end   time.Duration
}

// TestSlowServerGetsLess runs four servers of eight slots each, one of them ten times slower, for five minutes.
func TestSlowServerGetsLess(t *testing.T) {
	const tickEvery, total = 50 * time.Millisecond, 300 * time.Second
	run, envs := testRun(), testEnvs()
	run.TaskPartitions, run.BatchSize = 16, 128
	delete(envs, "wordle")
	c := envs["catch"]
	c.GroupSize = 8
	envs["catch"] = c
	w := newWorld(t, run, DefaultConfig(), envs)
	w.table(policy(0, false))
	w.table(info("catch", 1000))

	servers := make([]*simServer, 4)
	for i := range servers {
		servers[i] = &simServer{name: string(rune('a' + i)), each: time.Second, slots: 8}
		for p := range int32(4) {
			servers[i].partitions = append(servers[i].partitions, int32(i)*4+p)
		}
	}
	servers[3].each *= 10
	capacity := 0.0
	for _, s := range servers {
		capacity += float64(s.slots) / s.each.Seconds()
	}

	next := make([]int64, run.TaskPartitions) // offset of each partition
	seen := make([]int64, run.TaskPartitions) // its server's position
	missing := map[int64]int{}                // rollouts of each open group
	played, late := 0, 0
	for now := time.Duration(0); now < total; now += tickEvery {
		var refs []pipeline.Ref
		for _, e := range w.tick(tickEvery) {
			task := e.Value.(*schemas.Task)
			ref := pipeline.Ref{Topic: e.Topic, Partition: e.Partition, Offset: next[e.Partition]}
			next[e.Partition] += 1
			refs = append(refs, ref)
			missing[task.GroupID]++
			s := servers[e.Partition/4]
			s.waiting = append(s.waiting, simTask{ref: ref, group: task.GroupID})
		}
		w.core().Produced(refs)
		var done []int64
		for _, s := range servers {
			for len(s.running) > 0 && s.running[0].end <= now {
				played++
				if now > total/2 {
					late++
				}
				id := s.running[0].group
				if missing[id]--; missing[id] == 0 {
					done = append(done, id)
				}
				s.running = s.running[1:]
			}
			for len(s.running) < s.slots && len(s.waiting) > 0 {
				task := s.waiting[0]
				task.end = now + s.each
				s.running, s.waiting = append(s.running, task), s.waiting[1:]
			}
			if now%(500*time.Millisecond) == 0 {
				for _, p := range s.partitions {
					seen[p] = next[p]
					w.table(s.report(p, seen[p]))
				}
			}
		}
		for _, id := range done {
			w.outcome(id, 0)
		}
	}
	share := float64(played) / (capacity * total.Seconds())
	t.Logf("%.2f of capacity over all, %.2f in the second half", share, float64(late)/(capacity*total.Seconds()/2))
	if share < 0.8 {
		t.Errorf("%.2f of capacity", share)
	}
}

func (s *simServer) report(partition int32, next int64) *schemas.StageState {
	var open []int64
	for _, task := range slices.Concat(s.running, s.waiting) {
		if task.ref.Partition == partition {
			open = append(open, task.ref.Offset)
		}
	}
	r := &schemas.StageState{
		Stage: "envserver", Topic: "tasks.catch", Partition: int(partition), Instance: s.name, Concurrency: s.slots, LowOffset: next, NextOffset: next,
	}
	if len(open) > 0 {
		r.LowOffset = slices.Min(open)
		r.Unfinished = bitset(r.LowOffset, next, open)
	}
	return r
}

var deflater, _ = flate.NewWriter(nil, flate.HuffmanOnly)

func bitset(low, next int64, open []int64) []byte {
	set := make([]byte, (next-low+7)/8)
	for _, o := range open {
		set[(o-low)/8] |= 1 << ((o - low) % 8)
	}
	var b bytes.Buffer
	deflater.Reset(&b)
	_, _ = deflater.Write(set)
	_ = deflater.Close()
	return b.Bytes()
}
