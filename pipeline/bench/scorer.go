package main

var scorer = section{name: "scorer", title: "Scorer core: groups of 8 rollouts of 12 × 256 tokens", runs: []run{{
	pkg: "stages/scorer", benchtime: "200ms", figures: append(
		[]figure{
			{name: "trace → samples", bench: "Samples", unit: "ns/op", over: "SamplesCopy", peer: 0.69e6, goal: atMost(10e3)},
			{name: "trace → samples", bench: "Samples", unit: "allocs/op"},
		},
		append(groups("grpo", "grpo_length_penalty", "max_rl", "rloo", "rae", "hierarchical_grpo", "opd", "opsd", "sft", "echo", "all_filters"),
			figure{name: "grpo, from bytes to bytes", bench: "GroupBytes/12x256", unit: "groups/s"},
			figure{name: "grpo, from bytes to bytes", bench: "GroupBytes/12x256", unit: "cpu-µs/group"},
			figure{name: "grpo, from bytes to bytes, rollouts of 65,520 tokens", bench: "GroupBytes/12x5460", unit: "groups/s"},
			figure{name: "grpo, from bytes to bytes, rollouts of 65,520 tokens", bench: "GroupBytes/12x5460", unit: "cpu-µs/group"})...),
}}}

// groups are the figures of algorithms: traces in, a SampleGroup out.
func groups(ways ...string) (figures []figure) {
	for _, w := range ways {
		figures = append(figures, figure{name: w, bench: "Group/" + w, unit: "groups/s"})
	}
	return figures
}
