package export

import (
	"cmp"
	"encoding/binary"
	"hash/fnv"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// Why a rollout or a conversation is left out, in the order in which that is asked.
const (
	whyEval       = "of an eval"
	whyEnv        = "of another environment"
	whyUndecided  = "not decided yet"
	whyErrored    = "failed"
	whyFate       = "not trained on"
	whyVersion    = "of other policy versions"
	whyTruncated  = "truncated"
	whyUnreadable = "cannot be read"
	whyNotSaid    = "without a word of the policy"
	whyImages     = "with images"
	whyTokens     = "too long"
	whyNoReward   = "without a reward"
	whyReward     = "below the least reward"
	whySame       = "the same as another"
	whyNotBest    = "not among the best of the task"
)

// whys are all of them.
var whys = []string{
	whyUnreadable, whyEval, whyEnv, whyUndecided, whyErrored, whyFate, whyVersion, whyTruncated, whyNotSaid, whyImages, whyTokens, whyNoReward,
	whyReward, whySame, whyNotBest,
}

// groupKey names a group; evals have numbers of their own.
type groupKey struct {
	eval string
	id   int64
}

// rollout says why a rollout is left out as a whole; empty where its conversations are looked at. outcome is nil for a group that
// is not decided.
func (c Config) rollout(t *schemas.Trace, outcome *schemas.GroupOutcome) (why string, fate *schemas.RolloutFate) {
	switch {
	case t.Eval != "" && !c.Evals:
		return whyEval, nil
	case len(c.Envs) > 0 && !slices.Contains(c.Envs, t.Env):
		return whyEnv, nil
	case outcome == nil:
		return whyUndecided, nil
	}
	for i := range outcome.Rollouts {
		if f := &outcome.Rollouts[i]; f.RolloutIndex == t.RolloutIndex && f.Attempt == t.Attempt {
			fate = f
		}
	}
	switch {
	case len(t.Errors) > 0 || fate == nil || fate.Error != "": // it was asked for again, or came too late
		return whyErrored, nil
	case t.Eval == "" && c.Fate != AnyFate && fate.Fate != c.Fate:
		return whyFate, nil
	case !c.versions(t):
		return whyVersion, nil
	case t.Truncated && !c.Truncated:
		return whyTruncated, nil
	}
	return "", fate
}

// versions reports whether all tokens are of versions within the bounds. A frozen policy has no version.
func (c Config) versions(t *schemas.Trace) bool {
	if c.FromVersion == 0 && c.ToVersion < 0 {
		return true
	}
	return t.PolicyStart != nil && *t.PolicyStart >= c.FromVersion && (c.ToVersion < 0 || t.PolicyEnd != nil && *t.PolicyEnd <= c.ToVersion)
}

// conversation says why a conversation is left out for itself; empty where it is taken.
func (c Config) conversation(v conversation) string {
	switch {
	case v.images:
		return whyImages
	case c.MaxTokens > 0 && v.partial: // nobody knows
		return whyUnreadable
	case c.MaxTokens > 0 && v.length() > c.MaxTokens:
		return whyTokens
	case v.reward == nil && (c.Best > 0 || c.MinReward != nil):
		return whyNoReward
	case v.reward != nil && c.MinReward != nil && *v.reward < *c.MinReward:
		return whyReward
	}
	return ""
}

// A place is where a conversation is: a branch of the trace at an offset.
type place struct {
	topic     string
	partition int32
	offset    int64
	branch    int
}

// A candidate is a conversation that is taken unless it is the same as another, or others of its task are better.
type candidate struct {
	place
	group   groupKey
	rollout int
	task    uint64  // of environment, split, index and agent
	reward  float64 // negative infinity without one
	sum     [32]byte
}

// choose gives those that are taken, and counts the others.
func choose(list []candidate, best int, left map[string]int64) map[place]bool {
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(-cmp.Compare(a.reward, b.reward), cmp.Compare(a.group.eval, b.group.eval), cmp.Compare(a.group.id, b.group.id),
			cmp.Compare(a.rollout, b.rollout), cmp.Compare(a.branch, b.branch))
	})
	taken, seen, of := map[place]bool{}, map[[32]byte]bool{}, map[uint64]int{}
	for _, c := range list {
		switch {
		case seen[c.sum]:
			left[whySame]++
		case best > 0 && of[c.task] >= best:
			left[whyNotBest]++
			seen[c.sum] = true
		default:
			taken[c.place], seen[c.sum] = true, true
			of[c.task]++
		}
	}
	return taken
}

// taskOf names a task as one agent of it sees it.
func taskOf(t *schemas.Trace, agent string) uint64 {
	return hashOf(0, t.Env, t.Split, agent, t.TaskIndex)
}

// Splits of an export.
const (
	splitTrain = "train"
	splitTest  = "test"
)

// split is where the conversations of a task go. All of a task go together, whatever their agent.
func (c Config) split(t *schemas.Trace) string {
	if c.held(t.Env, t.Split, t.TaskIndex) {
		return splitTest
	}
	return splitTrain
}

// held reports whether the conversations of a task go into the split test.
func (c Config) held(env, split string, index int64) bool {
	return float64(hashOf(c.Seed, env, split, "", index)>>11)/(1<<53) < c.TestShare
}

func hashOf(seed int64, env, split, agent string, index int64) uint64 {
	h := fnv.New64a()
	var n [8]byte
	binary.LittleEndian.PutUint64(n[:], uint64(seed))
	h.Write(n[:])
	for _, s := range []string{env, split, agent} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	binary.LittleEndian.PutUint64(n[:], uint64(index))
	h.Write(n[:])
	x := h.Sum64() // FNV's high bits are poor: mix them (splitmix64)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
