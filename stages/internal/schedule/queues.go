package schedule

import (
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Queues chooses the partition for the next task of one environment: of the server that is least loaded in proportion
// to its concurrency, the emptiest partition. So a slow server gets less and a fast one more.
//
// A server's load is what its newest StageStates call unfinished, plus the records written from here at or above their
// positions. A partition of which no server has spoken counts as an idle server of its own, with a concurrency of 1.
// It is an optimisation: after a restart it knows what the StageStates say, and nothing is lost if that is old.
type Queues struct {
	partitions []partition
	servers    []server // the first ones stand for the partitions without one
}

type partition struct {
	server   int
	reported int     // unfinished records
	next     int64   // the server's position
	own      []int64 // offsets written from here, at or above next, in order
	pending  int     // written from here, offset not yet known
}

type server struct {
	instance    string
	concurrency int
	load        int
}

func (p *partition) load() int { return p.reported + len(p.own) + p.pending }

// NewQueues knows no server yet.
func NewQueues(partitions int) *Queues {
	q := &Queues{partitions: make([]partition, partitions), servers: make([]server, partitions)}
	for i := range partitions {
		q.partitions[i].server, q.servers[i].concurrency = i, 1
	}
	return q
}

// Report takes the state an environment server has written for one of its partitions. One that cannot be read, or
// speaks of a partition that is not there, says nothing.
func (q *Queues) Report(s *schemas.StageState) {
	if s.Partition < 0 || s.Partition >= len(q.partitions) {
		return
	}
	open, err := pipeline.UnfinishedOffsets(s.LowOffset, s.NextOffset, s.Unfinished)
	if err != nil {
		return
	}
	p := &q.partitions[s.Partition]
	q.servers[p.server].load -= p.load()
	p.server = q.serverOf(s.Instance, max(s.Concurrency, 1))
	p.reported, p.next = len(open), s.NextOffset
	read := 0
	for read < len(p.own) && p.own[read] < p.next {
		read++
	}
	p.own = slices.Delete(p.own, 0, read)
	q.servers[p.server].load += p.load()
}

// serverOf finds a server by its name, and notes its concurrency.
func (q *Queues) serverOf(instance string, concurrency int) int {
	known := q.servers[len(q.partitions):]
	i := slices.IndexFunc(known, func(s server) bool { return s.instance == instance })
	if i < 0 {
		i = len(known)
		q.servers = append(q.servers, server{instance: instance})
	}
	i += len(q.partitions)
	q.servers[i].concurrency = concurrency
	return i
}

// Next is the partition for a task that is written now.
func (q *Queues) Next() int32 {
	best := 0
	for i := 1; i < len(q.partitions); i++ {
		if q.less(i, best) {
			best = i
		}
	}
	q.partitions[best].pending++
	q.servers[q.partitions[best].server].load++
	return int32(best)
}

// Load is how many records no server has finished, as far as is known here.
func (q *Queues) Load() int {
	n := 0
	for i := range q.partitions {
		n += q.partitions[i].load()
	}
	return n
}

// less orders partitions by how loaded their server would be with one more record, then by their own load.
func (q *Queues) less(i, j int) bool {
	a, b := &q.partitions[i], &q.partitions[j]
	sa, sb := &q.servers[a.server], &q.servers[b.server]
	if x, y := (sa.load+1)*sb.concurrency, (sb.load+1)*sa.concurrency; x != y {
		return x < y
	}
	return a.load() < b.load()
}

// Produced says which offset a record got that Next placed.
func (q *Queues) Produced(ref pipeline.Ref) {
	if ref.Partition < 0 || int(ref.Partition) >= len(q.partitions) {
		return
	}
	p := &q.partitions[ref.Partition]
	if p.pending == 0 {
		return
	}
	p.pending--
	if ref.Offset >= p.next {
		p.own = append(p.own, ref.Offset)
	} else {
		q.servers[p.server].load--
	}
}
