package main

import "strings"

// A section is one part of the table: figures that belong together, and what limits them.
type section struct {
	name  string // as --only names it
	title string
	runs  []run
	// derive makes further rows of those that the sections so far have; nil for none.
	derive func(sofar []row) []row
}

// A run is one call of `go test -bench`: benchmarks that are compared with each other are in one run.
type run struct {
	pkg       string // its folder, from the top of the repository
	benchtime string // as go test has it: 200ms, or 1x for a benchmark that measures once
	figures   []figure
	// keepMemory: what one benchmark has freed stays with the process for the next. On a virtual machine a page that comes anew was seen
	// to take 6 µs, which made a stage with large records five times slower than one that has worked for a while.
	keepMemory bool
}

// A figure is one row of the table: what a benchmark reports under a unit, and what it is held against.
type figure struct {
	name  string // what was measured, in words
	bench string // the benchmark without its prefix, with its sub-benchmark: "Decode/trace"
	unit  string // as the benchmark reports it: ns/op, allocs/op, tokens/s
	// over is the benchmark of the same run whose value under the same unit the ratio divides by; empty for no ratio.
	over string
	// peer is what the nearest peer takes, in the same unit (shared/REFERENCE.md); 0 for none.
	peer float64
	goal goal
	// detail keeps the figure out of the table: it is for who computes with it, and in the JSON.
	detail bool
}

// A goal bounds a figure, or its ratio. The zero value asks for nothing.
type goal struct {
	ratio       bool
	most, least float64
}

func atMost(v float64) goal       { return goal{most: v} }
func atLeast(v float64) goal      { return goal{least: v} }
func ratioAtMost(v float64) goal  { return goal{ratio: true, most: v} }
func ratioAtLeast(v float64) goal { return goal{ratio: true, least: v} }

func (g goal) asked() bool { return g.most != 0 || g.least != 0 }

func (g goal) met(v float64) bool {
	return (g.most == 0 || v <= g.most) && (g.least == 0 || v >= g.least)
}

// more reports whether more of a unit is better.
func more(unit string) bool { return strings.HasSuffix(unit, "/s") }

// sections are the parts of the table, in its order.
func sections() []section {
	return []section{codec, packer, scorer, flow, envserver, model, learn, sink, restart, scale, fleets}
}
