package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const output = `goos: linux
pkg: example
BenchmarkCopy
BenchmarkCopy/small
BenchmarkCopy/small-2         	   10000	       100 ns/op	  512.00 MB/s	       0 B/op	       0 allocs/op
BenchmarkCopy/small-2         	   10000	       300 ns/op	  512.00 MB/s	       0 B/op	       0 allocs/op
BenchmarkCopy/small-2         	   10000	       110 ns/op	  512.00 MB/s	       0 B/op	       0 allocs/op
BenchmarkEncode
    encode_test.go:7: a line of the log
BenchmarkEncode-2             	    1000	      2500 ns/op	        40.5 records/s
BenchmarkKafka
    kafka_test.go:9: no Apache Kafka
--- SKIP: BenchmarkKafka
PASS
`

// A ratio is over the median of what a benchmark of the same run reported under the same unit.
func TestRatios(t *testing.T) {
	v, err := parse(strings.NewReader(output))
	if err != nil {
		t.Fatal(err)
	}
	of := run{figures: []figure{
		{name: "encode", bench: "Encode", unit: "ns/op", over: "Copy/small", peer: 25_000, goal: ratioAtMost(20)},
		{name: "records", bench: "Encode", unit: "records/s", peer: 10, goal: atLeast(40)},
		{name: "on Kafka", bench: "Kafka", unit: "records/s"},
	}}
	var r report
	r.add(section{name: "s", title: "S"}, of, v, skipped([]byte(output)), nil)
	encode, records, kafka := r.Rows[0], r.Rows[1], r.Rows[2]
	if encode.Ratio != 2500./110 || encode.Better != 10 || !encode.Missed || encode.Goal != "≤ 20×" {
		t.Errorf("%+v", encode)
	}
	if records.Value != 40.5 || records.Better != 4.05 || records.Missed || records.Goal != "≥ 40 records/s" {
		t.Errorf("%+v", records)
	}
	if !strings.Contains(kafka.Why, "no Apache Kafka") || kafka.Missed {
		t.Errorf("%+v", kafka)
	}
	r.compare(report{Rows: []row{{Section: "s", Name: "encode", Unit: "ns/op", Value: 5000}}})
	var out bytes.Buffer
	r.print(&out)
	for _, want := range []string{"2.5 µs", "22.7×", "25 µs, 10×", "≤ 20× MISSED", "5 µs", "not measured: kafka_test.go:9: no Apache Kafka"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &out)
		}
	}
}

// A run of some sections leaves the figures of all of them, and more repetitions get more time.
func TestPartsAndRepetitions(t *testing.T) {
	if all, some := file(nil), file([]string{"codec", "packer"}); all != ".cache/bench.json" || some != ".cache/bench-codec-packer.json" {
		t.Errorf("figures go to %s and %s", all, some)
	}
	if once, thrice := limit(1), limit(3); once < 10*time.Minute || thrice != 3*once {
		t.Errorf("limits %v and %v", once, thrice)
	}
}

// What failed is not taken for measured.
func TestFailedRun(t *testing.T) {
	var r report
	r.add(section{}, run{figures: []figure{{bench: "Encode", unit: "ns/op", goal: atMost(1)}}}, nil, nil, errors.New("exit status 1"))
	if row := r.Rows[0]; row.Why != "failed" || row.Value != 0 {
		t.Errorf("%+v", row)
	}
}

// Every figure names a benchmark that there is, and has a name of its own.
func TestFiguresHaveBenchmarks(t *testing.T) {
	declared := regexp.MustCompile(`(?m)^func Benchmark(\w+)\(`)
	seen := map[string]bool{}
	for _, s := range sections() {
		for _, r := range s.runs {
			files, err := filepath.Glob(filepath.Join("../..", r.pkg, "*_test.go"))
			if err != nil || len(files) == 0 {
				t.Fatalf("%s: no tests in %s", s.name, r.pkg)
			}
			var there []string
			for _, file := range files {
				src, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range declared.FindAllSubmatch(src, -1) {
					there = append(there, string(m[1]))
				}
			}
			for _, f := range r.figures {
				key := s.name + "/" + f.name + "/" + f.unit
				if seen[key] {
					t.Errorf("%s: two figures are called %q", s.name, f.name)
				}
				seen[key] = true
				for _, b := range []string{f.bench, f.over} {
					if top, _, _ := strings.Cut(b, "/"); top != "" && !slices.Contains(there, top) {
						t.Errorf("%s: there is no Benchmark%s in %s", s.name, top, r.pkg)
					}
				}
			}
		}
	}
}
