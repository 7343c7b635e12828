package scorer

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// score fills in the samples of a group without failed rollouts, or the filter that left none. A rollout that goes on
// to the packer keeps an empty fate.
//
// A sample without a token to train on is never sent. Whether one is sent of which every advantage is zero is up to the
// filter zero_advantage alone: dropped in its mode drop, sent in its mode monitor.
func (r rules) score(traces []*schemas.Trace, sg *schemas.SampleGroup, stats *Stats) {
	rollouts := make([]advantage.Rollout, len(traces))
	for i, t := range traces {
		rollouts[i] = advantage.NewRollout(t)
	}
	taker := ""
	for i, a := range r.algorithm.Advantages(rollouts) {
		sg.Rollouts[i].Fate = schemas.FateFiltered
		if a.Excluded {
			continue
		}
		for _, s := range samplesOf(traces[i], a) {
			if name := r.take(filter.Sample{Sample: &s, Trace: traces[i]}, stats); name == "" {
				sg.Samples = append(sg.Samples, s)
				sg.Rollouts[i].Fate = ""
			} else if taker == "" {
				taker = name
			}
		}
	}
	if len(sg.Samples) > 0 {
		return
	}
	sg.Reason, sg.Filter = schemas.FateFiltered, taker
	if taker == "" {
		sg.Filter = filter.NothingToTrain
	}
}

// take is the name of the first filter that drops the sample.
func (r rules) take(s filter.Sample, stats *Stats) string {
	for i, f := range r.filters {
		if !f.Takes(s) {
			continue
		}
		if r.modes[i] == filter.Drop {
			return f.Name()
		}
		stats.Monitored++
	}
	return ""
}

var one = []byte{1}

// samplesOf makes a sample of every branch of a trace that has tokens to train on. A sampled node that several branches
// share is trained in the first of them. Branches are numbered by their leaves' order among the nodes.
func samplesOf(t *schemas.Trace, a advantage.Advantage) []schemas.Sample {
	sampled := make([]int, len(t.Nodes)+1) // before each node
	leaf := make([]bool, len(t.Nodes))
	for i := range t.Nodes {
		sampled[i+1] = sampled[i] + bytes.Count(t.Nodes[i].Mask, one)
		leaf[i] = true
		if p := t.Nodes[i].Parent; p >= 0 {
			leaf[p] = false
		}
	}
	var samples []schemas.Sample
	trained := make([]bool, len(t.Nodes))
	branch := 0
	for i := range t.Nodes {
		if !leaf[i] {
			continue
		}
		length, train := 0, false
		var path []*schemas.Node
		var first []int // number of the first sampled token of each node on the path; -1 where it is not trained
		for k := i; k >= 0; k = t.Nodes[k].Parent {
			path = append(path, &t.Nodes[k])
			length += t.Nodes[k].TokenIDs.Len()
			if trained[k] || sampled[k+1] == sampled[k] {
				first = append(first, -1)
			} else {
				first = append(first, sampled[k])
				train = true
			}
			trained[k] = true
		}
		if train {
			samples = append(samples, sampleOf(t.RolloutIndex, branch, length, path, first, a))
		}
		branch++
	}
	return samples
}

// sampleOf joins the nodes of a path, which begins at the leaf.
func sampleOf(rollout, branch, length int, path []*schemas.Node, first []int, a advantage.Advantage) schemas.Sample {
	const widths = 4 + 4 + 4 + 4 + 1
	memory := make([]byte, widths*length)
	tensor := func(width int) []byte {
		t := memory[: width*length : width*length]
		memory = memory[width*length:]
		return t
	}
	s := schemas.Sample{
		RolloutIndex: rollout, Branch: branch,
		TokenIDs: tensor(4), Logprobs: tensor(4), Advantages: tensor(4), Temperatures: tensor(4), Mask: tensor(1),
	}
	at := 0
	for k := len(path) - 1; k >= 0; k-- {
		n := path[k]
		copy(s.TokenIDs[4*at:], n.TokenIDs)
		copy(s.Logprobs[4*at:], n.Logprobs)
		if first[k] >= 0 {
			copy(s.Mask[at:], n.Mask)
		}
		next := first[k]
		temperature := math.Float32bits(float32(n.Temperature))
		for _, m := range n.Mask {
			bits := math.Float32bits(1)
			if m == 1 && first[k] >= 0 {
				binary.LittleEndian.PutUint32(s.Advantages[4*at:], math.Float32bits(a.At(next)))
				bits = temperature
				next++
			}
			binary.LittleEndian.PutUint32(s.Temperatures[4*at:], bits)
			at++
		}
		s.PolicyStart = lower(s.PolicyStart, nodeStart(n))
	}
	return s
}

// policyStart is the lowest version that sampled a token of the nodes; nil where none is known.
func policyStart(nodes []schemas.Node) (lowest *int64) {
	for i := range nodes {
		lowest = lower(lowest, nodeStart(&nodes[i]))
	}
	return lowest
}

func nodeStart(n *schemas.Node) (lowest *int64) {
	for i, v := range n.Versions {
		end := len(n.Mask)
		if i+1 < len(n.Versions) {
			end = min(end, n.Versions[i+1].Offset)
		}
		for k := v.Offset; k < end; k++ {
			if n.Mask[k] == 1 {
				lowest = lower(lowest, &n.Versions[i].Version)
				break
			}
		}
	}
	return lowest
}

func lower(a, b *int64) *int64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}
