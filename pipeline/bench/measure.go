package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"
)

// limit ends a run of benchmarks that hangs. It grows with the number of times each is to run.
func limit(count int) time.Duration { return time.Duration(count) * 10 * time.Minute }

// Values are what benchmarks reported: by benchmark and unit, one for each time it ran.
type values map[string]map[string][]float64

func (v values) add(bench, unit string, x float64) {
	if v[bench] == nil {
		v[bench] = map[string][]float64{}
	}
	v[bench][unit] = append(v[bench][unit], x)
}

// median is the middle of what a benchmark reported; false where it reported nothing.
func (v values) median(bench, unit string) (float64, bool) {
	all := slices.Sorted(slices.Values(v[bench][unit]))
	if len(all) == 0 {
		return 0, false
	}
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2, true
}

// measure runs the benchmarks of a run count times. A benchmark that was skipped has no values, and its reason is in skips.
func measure(ctx context.Context, r run, count int) (v values, skips []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit(count)+time.Minute) // go test says more of what hangs, and compiles before
	defer cancel()
	var names []string
	for _, f := range r.figures {
		for _, b := range []string{f.bench, f.over} {
			if top, _, _ := strings.Cut(b, "/"); top != "" && !slices.Contains(names, top) {
				names = append(names, top)
			}
		}
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark("+strings.Join(names, "|")+")$", "-benchmem", "-v",
		"-benchtime", r.benchtime, "-count", fmt.Sprint(count), "-timeout", limit(count).String(), "./"+r.pkg)
	if r.keepMemory {
		cmd.Env = append(os.Environ(), "GODEBUG=madvdontneed=0")
	}
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	err = cmd.Run()
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, out.Bytes(), problems.Bytes())
	}
	v, err = parse(bytes.NewReader(out.Bytes()))
	return v, skipped(out.Bytes()), err
}

// parse reads the output of go test -bench.
func parse(out io.Reader) (values, error) {
	v := values{}
	in := benchfmt.NewReader(out, "")
	for in.Scan() {
		r, ok := in.Result().(*benchfmt.Result)
		if !ok {
			continue // a line of the log
		}
		base, parts := r.Name.Parts()
		name := string(base)
		for _, p := range parts {
			if p[0] == '/' { // not the number of processors
				name += string(p)
			}
		}
		for _, value := range r.Values {
			unit, x := value.Unit, value.Value
			if value.OrigUnit != "" {
				unit, x = value.OrigUnit, value.OrigValue
			}
			v.add(name, unit, x)
		}
	}
	return v, in.Err()
}

// skipped are the reasons that skipped benchmarks gave, the last lines of their logs.
func skipped(out []byte) []string {
	var reasons []string
	last := ""
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "--- SKIP: ") && !slices.Contains(reasons, last) {
			reasons = append(reasons, last)
		}
		last = strings.TrimSpace(lines.Text())
	}
	return reasons
}
