package pipeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/schemas"
)

// onBoth runs a test on kfake and on Apache Kafka, with a run of its own.
func onBoth(t *testing.T, test func(t *testing.T, rt *Runtime)) {
	t.Helper()
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) { test(t, runOn(t, b.Addrs)) })
}

// inTwo writes traces so that they are worked on in two transactions at least.
func inTwo(t *testing.T, rt *Runtime, traces []schemas.Record) {
	t.Helper()
	produce := producer(t, rt)
	produce(traces[:2]...)
	committed(t, rt, TopicSamples, 1)
	produce(traces[2:]...)
}

// once fails unless every group from 0 to n-1 comes on samples exactly once.
func once(t *testing.T, rt *Runtime, n int) {
	t.Helper()
	oncePerGroup(t, committed(t, rt, TopicSamples, n), n)
	noMore(t, rt, TopicSamples, n)
}

// TestInvariant_SIGKILLAnywhere kills three instances over and over while work flows: no group is lost or doubled.
func TestInvariant_SIGKILLAnywhere(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		rng := rand.New(rand.NewPCG(7, 7))
		toys := map[string]*toy{}
		for _, name := range []string{"a", "b", "c"} {
			toys[name] = startToy(t, rt, name)
		}
		const groups, kills = 120, 4
		produce, states, kill := producer(t, rt), 0, 0
		for i, k := range rng.Perm(2 * groups) {
			produce(trace(int64(k/2), k%2))
			switch part := i % (2 * groups / kills); part {
			case 0:
				kill = rng.IntN(2 * groups / kills)
				states = len(committed(t, rt, TopicState, states+1)) // they work
			case kill:
				name := string(rune('a' + rng.IntN(3)))
				toys[name].kill(t)
				toys[name] = startToy(t, rt, name)
			}
		}
		once(t, rt, groups)
	})
}

// TestCrashAroundTheCommit kills an instance just before and just after the end of its transaction. Its successor ends
// the transaction at its start: the brokers would have left it open for a minute, and with it the offsets unreadable.
func TestCrashAroundTheCommit(t *testing.T) {
	for _, place := range []string{"scorer.before-commit", "scorer.after-commit"} {
		t.Run(place, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rt *Runtime) {
				first := startToy(t, rt, "a", "PRL_TOY_TIMEOUT=1m", "PRL_CRASH_AT="+place+":2")
				inTwo(t, rt, pairsOf(0, 19))
				first.died(t)
				startToy(t, rt, "a", "PRL_TOY_TIMEOUT=1m")
				once(t, rt, 20)
			})
		})
	}
}

// TestHeirEndsAbandonedTransaction kills an instance in its transaction for good, before and after the offsets are part of
// it: whoever gets its partitions ends the transaction. The brokers would have left it open for a minute, which is longer
// than the test waits, and with it all that is written behind it unreadable.
func TestHeirEndsAbandonedTransaction(t *testing.T) {
	for _, place := range []string{"scorer.produced", "scorer.before-commit"} {
		t.Run(place, func(t *testing.T) {
			onBoth(t, func(t *testing.T, rt *Runtime) {
				lost := startToy(t, rt, "a", "PRL_TOY_TIMEOUT=1m", "PRL_CRASH_AT="+place+":2")
				inTwo(t, rt, pairsOf(0, 19))
				lost.died(t)
				startToy(t, rt, "b", "PRL_TOY_TIMEOUT=1m")
				once(t, rt, 20)
			})
		})
	}
}

// TestKilledBetweenItsTwoJoins kills an instance that has given partitions up, before the join in which another would have got
// them. It is back at once, so that the group sees nobody come or go: its successor notices that nobody has them. (Where it
// leads the group, its successor plans anew, and may see it by that.)
func TestKilledBetweenItsTwoJoins(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) {
		rt := runOn(t, b.Addrs, func(run *RunConfig) { run.TracePartitions = 4 })
		share := shares(t, rt)
		startToy(t, rt, "leader")
		share(4)
		follower := startToy(t, rt, "follower", "PRL_CRASH_AT=scorer.revoked:1")
		share(2, 2)
		startToy(t, rt, "third")
		follower.died(t)
		startToy(t, rt, "follower")
		produce(t, rt, pairsOf(0, 39)...)
		once(t, rt, 40)
	})
}

// shares gives a function that waits for a group of members with so many partitions each.
func shares(t *testing.T, rt *Runtime) func(want ...int) {
	t.Helper()
	adm, name := kadm.NewClient(client(t, rt)), rt.TopicName("scorer")
	return func(want ...int) {
		t.Helper()
		await(t, fmt.Sprintf("members with %v partitions", want), func() bool {
			groups, err := adm.DescribeGroups(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			var have []int
			for _, m := range groups[name].Members {
				if c, ok := m.Assigned.AsConsumer(); ok && len(c.Topics) == 1 {
					have = append(have, len(c.Topics[0].Partitions))
				}
			}
			return groups[name].State == "Stable" && slices.Equal(have, want)
		})
	}
}

// TestZombieIsFenced wakes an instance that slept while another took its name: it exits and has changed nothing.
func TestZombieIsFenced(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		zombie := startToy(t, rt, "a")
		produce(t, rt, pairsOf(0, 0)...)
		committed(t, rt, TopicSamples, 1)
		zombie.signal(t, syscall.SIGSTOP)
		startToy(t, rt, "a")
		produce(t, rt, pairsOf(1, 1)...)
		committed(t, rt, TopicSamples, 2)
		zombie.signal(t, syscall.SIGCONT)
		produce(t, rt, pairsOf(2, 2)...)
		zombie.fenced(t)
		once(t, rt, 3)
	})
}

// TestZombieInItsTransaction wakes an instance that slept in the middle of a transaction while another took its name: it
// cannot end the transaction any more.
func TestZombieInItsTransaction(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		zombie := startToy(t, rt, "a", "PRL_PAUSE_AT=scorer.before-commit:2", "PRL_TOY_TIMEOUT=1m")
		inTwo(t, rt, pairsOf(0, 9))
		zombie.stopped(t)
		startToy(t, rt, "a", "PRL_TOY_TIMEOUT=1m")
		committed(t, rt, TopicSamples, 10)
		zombie.signal(t, syscall.SIGCONT)
		zombie.fenced(t)
		once(t, rt, 10)
	})
}

// TestTwoOfOneName starts two instances of one name at once. One of them, at least, ends and says why; what is started
// in their place goes on.
func TestTwoOfOneName(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		first, second := startToy(t, rt, "a"), startToy(t, rt, "a")
		produce := producer(t, rt)
		ended := func(p *toy) bool {
			select {
			case <-p.done:
				return true
			default:
				return false
			}
		}
		groups := int64(0)
		await(t, "one of two to end", func() bool {
			produce(pairsOf(groups, groups)...)
			groups++
			return ended(first) || ended(second)
		})
		for _, p := range []*toy{first, second} {
			if ended(p) {
				p.fenced(t)
			} else {
				_ = p.cmd.Process.Kill() // it may have ended by now
				<-p.done
			}
		}
		startToy(t, rt, "a")
		produce(pairsOf(groups, groups)...)
		once(t, rt, int(groups)+1)
	})
}

// TestTransactionTimesOut stops an instance in the middle of a transaction for longer than the brokers wait. They abort
// it; the instance, awake again, sees that its time is over and does the work again. Nothing is lost or doubled.
func TestTransactionTimesOut(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		sleeper := startToy(t, rt, "a", "PRL_PAUSE_AT=scorer.before-commit:2", "PRL_TOY_TIMEOUT=1s")
		inTwo(t, rt, pairsOf(0, 9))
		sleeper.stopped(t)
		adm, id := kadm.NewClient(client(t, rt)), rt.TopicName("scorer")+".a"
		state := func() string {
			list, err := adm.DescribeTransactions(t.Context(), id)
			if err == nil {
				err = list[id].Err
			}
			if err != nil {
				t.Fatal(err)
			}
			return list[id].State
		}
		if s := state(); s != "Ongoing" {
			t.Fatalf("the transaction in which it sleeps is %s", s)
		}
		await(t, "the brokers to abort the transaction", func() bool { s := state(); return s == "CompleteAbort" || s == "Empty" })
		sleeper.signal(t, syscall.SIGCONT)
		once(t, rt, 10)
	})
}

// TestRebalanceInTheTransaction lets a second instance join while the first is in the middle of a transaction: the join
// waits for its end, and the transaction is not in vain.
func TestRebalanceInTheTransaction(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		first := startToy(t, rt, "a", "PRL_PAUSE_AT=scorer.before-commit:2", "PRL_TOY_TIMEOUT=1m")
		inTwo(t, rt, pairsOf(0, 9))
		first.stopped(t)
		startToy(t, rt, "b")
		adm, group := kadm.NewClient(client(t, rt)), rt.TopicName("scorer")
		members := func() (state string, n int) {
			list, err := adm.DescribeGroups(t.Context(), group)
			if err == nil {
				err = list.Error()
			}
			if err != nil {
				t.Fatal(err)
			}
			return list[group].State, len(list[group].Members)
		}
		await(t, "the second to ask for its share", func() bool { state, _ := members(); return state == "PreparingRebalance" })
		first.signal(t, syscall.SIGCONT)
		await(t, "both to have a share", func() bool { state, n := members(); return state == "Stable" && n == 2 })
		produce(t, rt, pairsOf(10, 19)...)
		once(t, rt, 20)
	})
}

// fenced waits for the end of a process that has lost its name, and asserts that it says so.
func (p *toy) fenced(t *testing.T) {
	t.Helper()
	if code := p.ended(t); code != 3 || !strings.Contains(p.last, "name in use") || !strings.Contains(p.last, "--instance") {
		t.Fatalf("it ended with code %d, want 3, and the words %q", code, p.last)
	}
}
