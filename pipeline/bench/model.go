package main

var model = section{name: "model", title: "Native inference and learner (100,000 parameters), against what the same processors do in matrix products", runs: []run{
	{
		pkg: "stages/internal/lm", benchtime: "300ms", figures: []figure{
			{name: "gonum, 1024 × 128 × 128", bench: "Gemm/gonum", unit: "GFLOP/s"},
			{name: "the same product, this package", bench: "Gemm/tiles", unit: "GFLOP/s", over: "Gemm/gonum"},
			{name: "the model's products, 64 tokens a processor", bench: "Gemm/model", unit: "GFLOP/s", over: "Gemm/tiles"},
			{name: "decode, 1 slot", bench: "Decode/slots=1", unit: "tokens/s"},
			{name: "decode, 1 slot", bench: "Decode/slots=1", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "decode, 8 slots", bench: "Decode/slots=8", unit: "tokens/s"},
			{name: "decode, 8 slots", bench: "Decode/slots=8", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "decode, 64 slots", bench: "Decode/slots=64", unit: "tokens/s"},
			{name: "decode, 64 slots", bench: "Decode/slots=64", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "decode, 256 slots", bench: "Decode/slots=256", unit: "tokens/s"},
			{name: "decode, 256 slots", bench: "Decode/slots=256", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "prompts of 64 tokens, 1 slot", bench: "Prefill/slots=1", unit: "tokens/s"},
			{name: "prompts of 64 tokens, 1 slot", bench: "Prefill/slots=1", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "prompts of 64 tokens, 64 slots", bench: "Prefill/slots=64", unit: "tokens/s"},
			{name: "prompts of 64 tokens, 64 slots", bench: "Prefill/slots=64", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "learner, 1 sequence of 24 tokens", bench: "Train/sequences=1", unit: "tokens/s"},
			{name: "learner, 1 sequence of 24 tokens", bench: "Train/sequences=1", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "learner, 8 sequences", bench: "Train/sequences=8", unit: "tokens/s"},
			{name: "learner, 8 sequences", bench: "Train/sequences=8", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "learner, 64 sequences", bench: "Train/sequences=64", unit: "tokens/s"},
			{name: "learner, 64 sequences", bench: "Train/sequences=64", unit: "GFLOP/s", over: "Gemm/model"},
			{name: "learner, 256 sequences", bench: "Train/sequences=256", unit: "tokens/s"},
			{name: "learner, 256 sequences", bench: "Train/sequences=256", unit: "GFLOP/s", over: "Gemm/model"},
		},
	},
	{
		pkg: "stages/inference", benchtime: "1s", figures: []figure{
			{name: "256 callers, 64 tokens each, the server in this process", bench: "Decode", unit: "tokens/s", over: "Decoder/tokens=64"},
			{name: "256 callers, 4 tokens each, the server in this process", bench: "InProcess", unit: "tokens/s", over: "Decoder/tokens=4"},
			{name: "256 callers, 4 tokens each, over HTTP", bench: "HTTP", unit: "tokens/s", over: "InProcess"},
		},
	},
}}
