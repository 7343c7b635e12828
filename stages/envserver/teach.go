package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference"
)

// A Teacher gives each sampled token of a finished rollout a log-probability of its own.
type Teacher struct {
	// Policy is a frozen policy, or schemas.TeacherSelf.
	Policy string
	// Room is how many tokens a demonstration may have where Policy is schemas.TeacherSelf: the positions of the model that the
	// longest rollout leaves.
	Room int
}

// teacherShare is the part of a rollout's time that is kept for its teacher, one in so many. It begins when the episode has
// been scored.
const teacherShare = 5

// taught reports whether the rollout has a teacher.
func (r *rollout) taught() bool { return r.teacher.Policy != "" && r.task.Eval == "" }

// teach asks the teacher for its log-probabilities of all sampled tokens and puts them into the trace: of every branch,
// and of a node that branches share once, given the path to it. An error is a failure, and the trace has none then.
func (r *rollout) teach(ctx context.Context, deadline time.Time) (err error) {
	timed, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	timed, done := span(timed, tracing.TeachSpan)
	defer func(start time.Time) { r.trace.Timing.ScoringMs += since(start) }(time.Now())
	defer func() { done(err) }()
	asked, name, prefix, err := r.teacherOf(timed)
	if err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	nodes := r.trace.Nodes
	ref := make([]schemas.Float32s, len(nodes))
	for _, path := range branches(nodes) {
		probe := asked
		probe.Tokens, probe.Mask = slices.Clone(prefix), make([]byte, len(prefix))
		at := make([]int, len(path)) // where the node's tokens begin
		wanted := false
		for k, i := range path {
			n := &nodes[i]
			at[k] = len(probe.Tokens)
			probe.Tokens = append(probe.Tokens, n.TokenIDs.Values()...)
			if ref[i] != nil {
				probe.Mask = append(probe.Mask, make([]byte, len(n.Mask))...)
				continue
			}
			probe.Mask = append(probe.Mask, n.Mask...)
			wanted = wanted || slices.Contains(n.Mask, 1)
		}
		if !wanted {
			continue
		}
		logprobs, err := r.caller.probe(timed, probe)
		if err != nil {
			return fault(ctx, errorModel, fmt.Errorf("teacher %s: %w", name, err))
		}
		for k, i := range path {
			if n := &nodes[i]; ref[i] == nil && slices.Contains(n.Mask, 1) {
				ref[i] = schemas.PackFloat32s(logprobs[at[k] : at[k]+len(n.Mask)])
			}
		}
	}
	for i := range nodes {
		if ref[i] != nil {
			nodes[i].RefLogprobs, nodes[i].RefModel = ref[i], name
		}
	}
	return nil
}

// teacherOf is a probe without tokens for the teacher, its name in the trace, and what it is shown before the conversation.
func (r *rollout) teacherOf(ctx context.Context) (probe inference.Probe, name string, prefix []int32, err error) {
	probe = inference.Probe{Temperature: r.task.Temperature, Policy: r.teacher.Policy, Model: r.model}
	if r.teacher.Policy != schemas.TeacherSelf {
		return probe, r.recorded(r.teacher.Policy), nil, nil
	}
	version := r.newest()
	if r.task.PinVersion != nil {
		version = *r.task.PinVersion
	}
	probe.Policy, probe.PinVersion = "", &version
	e := r.newEpisode()
	defer e.close()
	prefix, err = r.demonstration(ctx, e, json.RawMessage(r.trace.Task), r.task.GroupSeed)
	return probe, fmt.Sprintf("%s@%d", schemas.TeacherSelf, version), prefix, err
}

// branches are the paths from a root to a leaf, in the order of the leaves.
func branches(nodes []schemas.Node) [][]int {
	inner := make([]bool, len(nodes))
	for _, n := range nodes {
		if n.Parent >= 0 {
			inner[n.Parent] = true
		}
	}
	var paths [][]int
	for leaf := range nodes {
		if inner[leaf] {
			continue
		}
		paths = append(paths, branchTo(nodes, leaf))
	}
	return paths
}
