package advantage

import "math"

// A comparison turns the finite rewards of those that are compared into their advantages, in place. Equal rewards become
// exactly zero, and so does one alone.
type comparison func(rewards []float64)

// A relative algorithm compares members with each other, those of each agent apart.
//
// Where the environment rewards tokens, sampled token i is compared with the tokens i of the others that have one; tokens
// without a reward of their own get the member's advantage.
type relative struct {
	compare comparison
	penalty LengthPenalty
	episode []string // agents that are compared within one rollout
}

func (a relative) Credits(g Group) []Credit {
	credits := make([]Credit, len(g.Members))
	for _, set := range a.sets(g.Members) {
		a.apart(g.Members, set, credits)
	}
	return credits
}

// sets are the indices of the members that are compared with each other. Those without a reward are in none.
func (a relative) sets(members []Member) [][]int {
	type key struct {
		agent   string
		rollout int
	}
	var sets [][]int
	number := map[key]int{}
	for i := range members {
		if members[i].Reward == nil {
			continue
		}
		k := key{agent: members[i].Agent, rollout: -1}
		for _, agent := range a.episode {
			if agent == k.agent {
				k.rollout = members[i].Rollout
			}
		}
		n, ok := number[k]
		if !ok {
			n = len(sets)
			number[k], sets = n, append(sets, nil)
		}
		sets[n] = append(sets[n], i)
	}
	return sets
}

// apart fills in the credits of one set.
func (a relative) apart(members []Member, set []int, credits []Credit) {
	values := make([]float64, len(set))
	longest := 0
	for k, i := range set {
		values[k] = *members[i].Reward
		longest = max(longest, len(members[i].TokenRewards))
	}
	if a.penalty.On {
		a.penalty.take(members, set, values)
	}
	a.compare(values)
	for k, i := range set {
		credits[i] = Credit{RL: true, All: narrow(values[k])}
		if members[i].TokenRewards != nil {
			credits[i].Tokens = make([]float32, members[i].Sampled)
		}
	}
	for pos := range longest {
		a.position(members, set, pos, values[:0], credits)
	}
}

// position fills in the advantages of the sampled tokens number pos.
func (a relative) position(members []Member, set []int, pos int, values []float64, credits []Credit) {
	for _, i := range set {
		if pos >= len(members[i].TokenRewards) {
			continue
		}
		if v := float64(members[i].TokenRewards[pos]); math.IsNaN(v) {
			credits[i].Tokens[pos] = credits[i].All
		} else {
			values = append(values, v)
		}
	}
	a.compare(values)
	for _, i := range set {
		if pos < len(members[i].TokenRewards) && !math.IsNaN(float64(members[i].TokenRewards[pos])) {
			credits[i].Tokens[pos], values = narrow(values[0]), values[1:]
		}
	}
}

// narrow is the nearest finite float32.
func narrow(v float64) float32 {
	return float32(min(max(v, -math.MaxFloat32), math.MaxFloat32))
}
