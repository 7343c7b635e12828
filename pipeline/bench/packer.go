package main

import "fmt"

// The packer's plans stand beside what the peer's algorithm makes of the same lengths (PeerPlan, written for this) and what no
// algorithm can better (PlanLimit). The column peer is its own code's on two cores, with lengths of the same distribution but
// not the same ones; its slowest rank is up to 0.09 % above the mean. Waiting is what the slowest micro-batch of each
// micro-step costs above the mean one.
var packer = section{name: "packer", title: "Packer: log-normal lengths, mean 4k, cut at 32,768; micro-batches of 32,768 tokens", runs: []run{
	{pkg: "stages/packer", benchtime: "300ms", figures: plans()},
	{pkg: "stages/packer", benchtime: "1s", figures: []figure{
		{name: "whole core, 512 rollouts", bench: "Core/imitates=false", unit: "CPU-ms/op", over: "CoreCopy/imitates=false"},
		{name: "whole core, 512 rollouts", bench: "Core/imitates=false", unit: "rollouts/s"},
		{name: "whole core, 512 rollouts", bench: "Core/imitates=false", unit: "tokens/s"},
		{name: "allocations of a step of 512 rollouts", bench: "Core/imitates=false", unit: "allocs/op"},
		{name: "whole core, 512 rollouts in all loss components", bench: "Core/imitates=true", unit: "CPU-ms/op", over: "CoreCopy/imitates=true"},
		{name: "whole core, 512 rollouts in all loss components", bench: "Core/imitates=true", unit: "tokens/s"},
	}},
}}

func plans() (all []figure) {
	type of struct{ samples, ranks int }
	// What the peer takes, in CPU milliseconds, how many times faster a plan has to be, and how long its ranks wait.
	peer := map[of]float64{{2048, 1}: 3000, {512, 8}: 390, {2048, 8}: 6400, {8192, 8}: 94_000, {2048, 64}: 92_000}
	faster := map[int]float64{1: 100, 8: 200, 64: 1000}
	waiting := map[of]float64{{512, 8}: 13, {2048, 8}: 2, {2048, 64}: 27}
	for _, samples := range []int{512, 2048, 8192} {
		for _, ranks := range []int{1, 8, 64} {
			at := of{samples, ranks}
			name := fmt.Sprintf("%d samples on %d ranks: ", samples, ranks)
			under := fmt.Sprintf("/samples=%d/ranks=%d", samples, ranks)
			time := figure{name: name + "time", bench: "Plan" + under, unit: "CPU-ms/op", peer: peer[at]}
			if samples == 2048 {
				time.goal = atMost(time.peer / faster[ranks])
			}
			all = append(all, time, figure{name: name + "padding", bench: "Plan" + under, unit: "%padding", over: "PeerPlan" + under, goal: ratioAtMost(1)})
			if ranks == 1 {
				continue
			}
			slowest := figure{name: name + "slowest rank", bench: "Plan" + under, unit: "%rank-above-mean", peer: 0.09, goal: atMost(0.09)}
			if samples == 512 && ranks == 64 { // a rank with one of the longest samples has too much already
				slowest.peer, slowest.over, slowest.goal = 0, "PlanLimit"+under, ratioAtMost(1.0009)
			}
			all = append(all, slowest,
				figure{name: name + "waiting in micro-steps", bench: "Plan" + under, unit: "%waiting", over: "PeerPlan" + under, peer: waiting[at], goal: ratioAtMost(1)},
				figure{name: name + "waiting, against the least there can be", bench: "Plan" + under, unit: "%waiting", over: "PlanLimit" + under},
			)
		}
	}
	return all
}
