package main

var envserver = section{name: "envserver", title: "Environment server: rollouts from tasks to traces", runs: []run{
	{pkg: "stages/envserver", benchtime: "1s", figures: []figure{
		{name: "rollout of one turn without a broker", bench: "Play/single-turn", unit: "ns/op"},
		{name: "its allocations", bench: "Play/single-turn", unit: "allocs/op", goal: atMost(250)},
		{name: "rollout of four turns with tools without a broker", bench: "Play/tools", unit: "ns/op"},
		{name: "its allocations, of four turns", bench: "Play/tools", unit: "allocs/op", goal: atMost(1200)},
	}},
	{pkg: "stages/envserver", benchtime: "1x", figures: []figure{
		{name: "one turn, model without latency", bench: "Server/single-turn", unit: "rollouts/s", over: "Broker/single-turn"},
		{name: "one turn, CPU with the broker's", bench: "Server/single-turn", unit: "cpu-ms/rollout", over: "Broker/single-turn"},
		{name: "four turns with tools, model without latency", bench: "Server/tools", unit: "rollouts/s", over: "Broker/tools"},
		{name: "four turns with tools, CPU with the broker's", bench: "Server/tools", unit: "cpu-ms/rollout", over: "Broker/tools"},
	}},
	{pkg: "stages/envserver/load", benchtime: "1x", figures: []figure{
		{name: "rollouts at once over HTTP, three turns", bench: "Slow", unit: "at-once", goal: atLeast(10_000)},
		{name: "their speed", bench: "Slow", unit: "rollouts/s"},
		{name: "their CPU in the server", bench: "Slow", unit: "cpu-ms/rollout"},
		{name: "most memory, with GOMEMLIMIT=800MiB", bench: "Slow", unit: "peak-MiB", goal: atMost(1024)},
		{name: "that memory for each", bench: "Slow", unit: "KiB/rollout"},
		{name: "of it in use while all wait, heap and stacks", bench: "Slow", unit: "live-KiB/rollout", goal: atMost(64)},
	}},
}}
