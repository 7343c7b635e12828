package main

var codec = section{name: "codec", title: "Codec: one record, against copying its bytes", runs: []run{{
	pkg: "schemas", benchtime: "200ms", figures: []figure{
		{name: "Trace of 12 × 256 tokens, encode", bench: "EncodeTrace", unit: "ns/op"},
		{name: "Trace of 12 × 256 tokens, decode", bench: "DecodeTrace", unit: "ns/op"},
	},
}}}
