// Package serve offers an environment to programs of other frameworks, without a broker: package openenv there to OpenEnv's
// clients, package verifiers to those of verifiers.
//
// The guarantee: a client plays the same episodes as a run would, by the same [env.Session]. Whatever a client does costs its own
// episodes only: their number is bounded, every call of the environment has a deadline, and one that does not heed it is
// left alone. Clients are untrusted: they get no more than episodes of this environment.
package serve

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Served is an environment and what bounds its episodes.
type Served struct {
	Env env.Environment
	// Limit is how long one call of the environment may take.
	Limit time.Duration
}

// Pick is which episode a client asks for; what is nil is up to the server.
type Pick struct {
	Split *string
	Index *int64
	// Seed is that of the episode. Without an index it also is the index, modulo the number of tasks, so that seeds that count
	// from 0 count through the tasks.
	Seed *int64
}

// Chosen is a pick with nothing left open.
type Chosen struct {
	Split env.Split
	Index int
	Seed  int64
}

// BadPick is a mistake of the client: there is no such task.
type BadPick struct {
	// Field is what is wrong: split or index.
	Field, Message string
}

func (b *BadPick) Error() string { return b.Message }

// ErrNoTasks is an environment that cannot be played.
var ErrNoTasks = errors.New("the environment has no tasks")

// Choose fills in what a pick leaves open: tasks to train on, if there are any, and a random seed.
func (s Served) Choose(p Pick) (Chosen, error) {
	info := s.Env.Info()
	c := Chosen{Split: env.Train}
	if p.Split != nil {
		c.Split = env.Split(*p.Split)
	} else if info.Train == 0 {
		c.Split = env.Eval
	}
	n := info.Tasks(c.Split)
	switch {
	case p.Split != nil && c.Split != env.Train && c.Split != env.Eval:
		return c, &BadPick{"split", fmt.Sprintf("there is no split %q: %q or %q", c.Split, env.Train, env.Eval)}
	case n == 0 && p.Split != nil:
		return c, &BadPick{"split", fmt.Sprintf("%s has no tasks in split %q", info.Name, c.Split)}
	case n == 0:
		return c, ErrNoTasks
	}
	// Below 2⁵³, so that every JSON reader has it as it is.
	c.Seed = rand.Int64N(1 << 53)
	if p.Seed != nil {
		c.Seed = *p.Seed
	}
	if p.Index == nil {
		c.Index = int((c.Seed%int64(n) + int64(n)) % int64(n))
		return c, nil
	}
	if *p.Index < 0 || *p.Index >= int64(n) {
		return c, &BadPick{"index", fmt.Sprintf("%s has no task %d in split %q: 0 to %d", info.Name, *p.Index, c.Split, n-1)}
	}
	c.Index = int(*p.Index)
	return c, nil
}

// Local reports whether a host name means this machine alone.
func Local(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
