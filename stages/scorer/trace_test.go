package scorer

import (
	"github.com/prl-project/prl/schemas"
)

// prompt and answer make nodes of n tokens with ids from first on.
func prompt(parent, first, n int) schemas.Node {
	return schemas.Node{
		Parent: parent, Role: "user", TokenIDs: ids(first, n), Mask: make(schemas.Uint8s, n),
		Logprobs: schemas.PackFloat32s(make([]float32, n)),
	}
}

// answer's last token is scaffolding.
func answer(parent, first, n int, versions ...schemas.VersionRun) schemas.Node {
	node := prompt(parent, first, n)
	node.Role, node.Temperature, node.Versions = "assistant", 0.5, versions
	logprobs := make([]float32, n)
	for i := range n - 1 {
		node.Mask[i], logprobs[i] = 1, -float32(first+i)
	}
	node.Logprobs = schemas.PackFloat32s(logprobs)
	return node
}

func ids(first, n int) schemas.Int32s {
	v := make([]int32, n)
	for i := range v {
		v[i] = int32(first + i)
	}
	return schemas.PackInt32s(v)
}

func run(offset int, version int64) schemas.VersionRun {
	return schemas.VersionRun{Offset: offset, Version: version}
}

// trace is one rollout of a group of size: a prompt of two tokens and an answer of three, of which two are sampled.
func trace(group int64, size, rollout int, reward float64) *schemas.Trace {
	return &schemas.Trace{
		Env: "catch", GroupID: group, GroupSize: size, RolloutIndex: rollout, TaskIndex: 10 + group, Reward: &reward,
		Nodes: []schemas.Node{prompt(-1, 100, 2), answer(0, 10*rollout, 3, run(0, 4))},
	}
}

func failure(group int64, size, rollout int, kind string) *schemas.Trace {
	t := trace(group, size, rollout, 0)
	t.Reward, t.Nodes = nil, nil
	t.Errors = []schemas.TraceError{{Type: kind, Message: "message"}}
	return t
}
