package main

var codec = section{name: "codec", title: "Codec: one record, against copying its bytes", runs: []run{{
	pkg: "schemas", benchtime: "200ms", figures: append(
		// What is large is held against copying it.
		[]figure{
			{name: "Trace of 12 × 256 tokens, encode", bench: "Encode/Trace", unit: "ns/op", over: "Copy/Trace", peer: 1.6e6, goal: atMost(25e3)},
			{name: "Trace of 12 × 256 tokens, decode", bench: "Decode/Trace", unit: "ns/op", over: "Copy/Trace", peer: 2.6e6, goal: atMost(10e3)},
			{name: "Trace of 12 × 256 tokens, encode", bench: "Encode/Trace", unit: "allocs/op"},
			{name: "Trace of 12 × 256 tokens, decode", bench: "Decode/Trace", unit: "allocs/op"},
			{name: "Trace of 64 × 1,024 tokens, encode", bench: "Encode/Trace64k", unit: "ns/op", over: "Copy/Trace64k"},
			{name: "Trace of 64 × 1,024 tokens, decode", bench: "Decode/Trace64k", unit: "ns/op", over: "Copy/Trace64k"},
			{name: "SampleGroup of 8 × 3,072 tokens, encode", bench: "Encode/SampleGroup", unit: "ns/op", over: "Copy/SampleGroup", peer: 8 * 0.15e6},
			{name: "SampleGroup of 8 × 3,072 tokens, decode", bench: "Decode/SampleGroup", unit: "ns/op", over: "Copy/SampleGroup", peer: 8 * 2.1e6},
			{name: "MicroBatch of 30,720 tokens, encode", bench: "Encode/MicroBatch", unit: "ns/op", over: "Copy/MicroBatch", peer: 2.5e6, goal: atMost(0.3e6)},
			{name: "MicroBatch of 30,720 tokens, decode", bench: "Decode/MicroBatch", unit: "ns/op", over: "Copy/MicroBatch", peer: 25e6, goal: atMost(0.3e6)},
		},
		small("Task", "GroupOutcome", "Request", "PolicyVersion", "StageState", "EvalResult", "MetricPoint", "EnvInfo")...),
}}}

// small are the figures of records without tensors.
func small(records ...string) (figures []figure) {
	for _, r := range records {
		figures = append(figures,
			figure{name: r + ", encode", bench: "Encode/" + r, unit: "ns/op"},
			figure{name: r + ", decode", bench: "Decode/" + r, unit: "ns/op"})
	}
	return figures
}
