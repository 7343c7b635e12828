package main

import "fmt"

var flow = section{name: "flow", title: "Flow: rollouts through the stages, against a plain producer and consumer of the same bytes", runs: []run{{
	pkg: "stages/flowbench", benchtime: "1x", figures: flowFigures(), keepMemory: true,
}}}

func flowFigures() (list []figure) {
	for _, broker := range []string{"Kafka", "kfake"} {
		for _, shape := range []struct {
			words, name string
			peer        float64 // PipelineRL's actor stream on Redis, samples of 3,072 tokens
		}{{"3,072 tokens", "12x256", 650}, {"65,520 tokens", "12x5460", 0}} {
			at := map[string]string{"Kafka": "kafka", "kfake": "kfake"}[broker] + "/" + shape.name
			say := func(what string) string { return fmt.Sprintf("%s, %s: %s", broker, shape.words, what) }
			list = append(list,
				figure{name: say("all stages"), bench: "Flow/" + at + "/full", unit: "rollouts/s", over: "Flow/" + at + "/raw", peer: shape.peer},
				figure{name: say("all stages, of traces"), bench: "Flow/" + at + "/full", unit: "MB/s"},
				figure{name: say("raw"), bench: "Flow/" + at + "/raw", unit: "MB/s", detail: true},
			)
			for _, hop := range []struct {
				stage, does string
				goal        goal
			}{
				{"scorer", "scorer alone", ratioAtLeast(0.5)}, {"packer", "packer alone", ratioAtLeast(0.5)},
				{"trainer", "null trainer alone, a version a step", goal{}},
			} {
				bench := "Hop/" + at + "/" + hop.stage
				list = append(list, figure{name: say(hop.does), bench: bench, unit: "rollouts/s", over: bench + "-raw", goal: hop.goal})
			}
			if shape.name != "12x256" {
				continue // how long a hop takes is measured for rollouts of the usual length
			}
			for _, hop := range []struct{ stage, does string }{
				{"envserver", "task → trace"}, {"scorer", "trace → SampleGroup"}, {"packer", "SampleGroup → MicroBatch"}, {"trainer", "MicroBatch → PolicyVersion"},
			} {
				list = append(list,
					figure{name: say(hop.does + ", half load"), bench: "Flow/" + at + "/half/" + hop.stage, unit: "p50-ms"},
					figure{name: say(hop.does + ", half load"), bench: "Flow/" + at + "/half/" + hop.stage, unit: "p99-ms", goal: atMost(100)},
					figure{name: say(hop.does + ", all waiting"), bench: "Flow/" + at + "/full/" + hop.stage, unit: "p99-ms"},
				)
			}
		}
	}
	return list
}
