package main

import (
	"fmt"

	"github.com/prl-project/prl/pipeline/bench/fleet"
)

// shapes are the rollouts that the model knows: what the benchmarks call them, their tokens, and how many a step of many ranks has.
var shapes = []struct {
	name, words string
	tokens      float64
	batch       int
}{{"12x256", "3,072 tokens", 3072, 4096}, {"12x5460", "65,520 tokens", 65_520, 2048}}

// stagesAlone are measured in processes of their own, in the order of the flow.
var stagesAlone = []string{"emitter", "envserver", "scorer", "packer", "trainer", "sink"}

// topicsSunk are those that the sink has read, with their names in the run that was measured, and the partitions of a large fleet.
var topicsSunk = []struct {
	name, measured string
	partitions     int
}{
	{fleet.Tasks, "tasks.drill", servers}, // no more servers than partitions get work
	{fleet.Traces, "traces", partitions},
	{fleet.Samples, "samples", 1},
	{fleet.Batches, "batches", ranks},
	{fleet.Outcomes, "outcomes", 1},
}

const cpuUnit, brokerUnit = "cpu-ms/rollout", "broker-cpu-ms/rollout"

// scale is what each stage takes in processes of its own: what must stay flat when there are more of them, and what the model takes.
var scale = section{name: "scale", title: "Scale out: each stage alone on kfake, in 1, 2 and 4 processes", runs: []run{{
	pkg: "stages/flowbench", benchtime: "1x", figures: scaleFigures(),
}}}

func scaleFigures() (all []figure) {
	for _, stage := range []string{"scorer", "sink"} {
		one := fmt.Sprintf("Scale/12x256/%s/processes=1", stage)
		for _, n := range []int{1, 2, 4} {
			bench := fmt.Sprintf("Scale/12x256/%s/processes=%d", stage, n)
			all = append(all, figure{name: fmt.Sprintf("%s × %d", stage, n), bench: bench, unit: "rollouts/s", over: one})
			f := figure{name: fmt.Sprintf("%s × %d, CPU of all", stage, n), bench: bench, unit: cpuUnit, over: one}
			if n > 1 {
				f.goal = ratioAtMost(1.25)
			}
			all = append(all, f, figure{name: fmt.Sprintf("%s × %d, CPU of each to start and get warm", stage, n), bench: bench, unit: "once-cpu-ms/process"})
		}
	}
	for _, s := range shapes {
		for _, stage := range stagesAlone {
			bench := fmt.Sprintf("Scale/%s/%s/processes=1", s.name, stage)
			all = append(all, figure{name: stage + " of " + s.name, bench: bench, unit: cpuUnit, detail: true},
				figure{name: stage + " of " + s.name, bench: bench, unit: brokerUnit, detail: true})
		}
		bench := fmt.Sprintf("Scale/%s/sink/processes=1", s.name)
		for _, t := range topicsSunk {
			all = append(all, figure{name: t.name + " of " + s.name, bench: bench, unit: t.measured + "-B/rollout", detail: true})
		}
		all = append(all, figure{name: "blobs of " + s.name, bench: bench, unit: "blobs-B/rollout", detail: true})
	}
	return append(all, figure{name: "requests of an idle environment server", bench: "Idle", unit: "requests/s"},
		figure{name: "a small request, of the broker and of who asks", bench: "Requests", unit: "cpu-µs/request"})
}
