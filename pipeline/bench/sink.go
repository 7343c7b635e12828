package main

var sink = section{name: "sink", title: "Sink: records to Parquet, against parquet-go alone", runs: []run{
	{pkg: "stages/sink", benchtime: "1s", figures: []figure{
		{name: "traces of 12 × 256 tokens, of parquet-go's rate", bench: "Write/traces", unit: "rows/s", over: "Plain/traces"},
		{name: "traces, bytes of records", bench: "Write/traces", unit: "record-MB/s"},
		{name: "traces, Parquet for a byte of records", bench: "Write/traces", unit: "file/record"},
		{name: "traces, allocations for 512", bench: "Write/traces", unit: "allocs/op", over: "Plain/traces"},
		{name: "samples, groups of eight", bench: "Write/samples", unit: "rows/s"},
		{name: "samples, bytes of records", bench: "Write/samples", unit: "record-MB/s"},
		{name: "samples, Parquet for a byte of records", bench: "Write/samples", unit: "file/record"},
		{name: "micro-batches of 30,720 tokens", bench: "Write/batches", unit: "rows/s"},
		{name: "micro-batches, Parquet for a byte of records", bench: "Write/batches", unit: "file/record"},
		{name: "outcomes, of parquet-go's rate", bench: "Write/outcomes", unit: "rows/s", over: "Plain/outcomes"},
		{name: "outcomes, Parquet for a byte of records", bench: "Write/outcomes", unit: "file/record"},
		{name: "tasks", bench: "Write/tasks", unit: "rows/s"},
		{name: "tasks, Parquet for a byte of records", bench: "Write/tasks", unit: "file/record"},
		{name: "metrics", bench: "Write/metrics", unit: "rows/s"},
		{name: "metrics, Parquet for a byte of records", bench: "Write/metrics", unit: "file/record"},
	}},
	{pkg: "stages/sink", benchtime: "2x", figures: []figure{
		{name: "the whole stage on a full topic, of a plain consumer's rate", bench: "Stage", unit: "rows/s", over: "Consume"},
		{name: "the whole stage, bytes of records", bench: "Stage", unit: "record-MB/s"},
	}},
}}
