package main

var learn = section{name: "learn", title: "Time to learn: the demo's model from nothing, each environment alone, five seeds, the whole pipeline in one process", runs: []run{{
	pkg: "stages", benchtime: "1x", figures: []figure{
		{name: "catch to a reward of 0.8 (random: 0.33), seeds of five", bench: "Learn/catch", unit: "reached", goal: atLeast(5)},
		{name: "catch, median", bench: "Learn/catch", unit: "s"},
		{name: "catch, slowest seed", bench: "Learn/catch", unit: "s-slowest"},
		{name: "catch, median", bench: "Learn/catch", unit: "steps"},
		{name: "catch, slowest seed", bench: "Learn/catch", unit: "steps-slowest", goal: atMost(60)},
		{name: "reverse-text to 0.1 (random: 0.03), seeds of five", bench: "Learn/reverse-text", unit: "reached", goal: atLeast(5)},
		{name: "reverse-text, median", bench: "Learn/reverse-text", unit: "s"},
		{name: "reverse-text, slowest seed", bench: "Learn/reverse-text", unit: "s-slowest"},
		{name: "reverse-text, median", bench: "Learn/reverse-text", unit: "steps"},
		{name: "reverse-text, slowest seed", bench: "Learn/reverse-text", unit: "steps-slowest", goal: atMost(80)},
		{name: "wordle to 0.2 (random: 0.15), seeds of five", bench: "Learn/wordle", unit: "reached", goal: atLeast(5)},
		{name: "wordle, median", bench: "Learn/wordle", unit: "s"},
		{name: "wordle, slowest seed", bench: "Learn/wordle", unit: "s-slowest"},
		{name: "wordle, median", bench: "Learn/wordle", unit: "steps"},
		{name: "wordle, slowest seed", bench: "Learn/wordle", unit: "steps-slowest", goal: atMost(65)},
	},
}}}
