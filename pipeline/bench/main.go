// Command bench measures prl: it runs the benchmarks that stand beside the code, each comparison within one run, and writes one table of
// figure, unit and ratio, and the same as JSON. With --before it stands beside what was measured earlier.
//
// A figure is a line of this folder's sections; what measures it is an ordinary Go benchmark of its package, so that `go test -bench` and
// benchstat work as everywhere. `make bench` runs all of them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
)

type flags struct {
	Only   []string `help:"Sections to measure: ${sections}." placeholder:"SECTION,…"`
	JSON   string   `help:"File for the figures, beside the table (.cache/bench.json; with --only .cache/bench-SECTION-….json)." placeholder:"FILE"`
	Before string   `help:"Figures of an earlier run to compare with." type:"existingfile" placeholder:"FILE"`
	Count  int      `default:"1" help:"How often each benchmark runs (1); the median counts. Once takes some ten minutes." placeholder:"N"`
}

func main() {
	var f flags
	var names []string
	for _, s := range sections() {
		names = append(names, s.name)
	}
	k := kong.Parse(&f, kong.Name("bench"), kong.Description("Measures prl, against the limits of this machine and against its peers."),
		kong.Vars{"sections": strings.Join(names, ", ")})
	for _, name := range f.Only {
		if !slices.Contains(names, name) {
			k.Fatalf("no section %q: there are %s", name, strings.Join(names, ", "))
		}
	}
	if f.Count < 1 {
		k.Fatalf("--count %d: at least once", f.Count)
	}
	if f.JSON == "" {
		f.JSON = file(f.Only)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	k.FatalIfErrorf(all(ctx, f))
}

// file is where the figures go. Those of some sections leave the file of all of them alone.
func file(only []string) string {
	return filepath.Join(".cache", strings.Join(append([]string{"bench"}, only...), "-")+".json")
}

// all measures what was asked for, and writes table and JSON of what there is, also where a part failed.
func all(ctx context.Context, f flags) error {
	var before *report
	if f.Before != "" {
		before = &report{}
		data, err := os.ReadFile(f.Before)
		if err == nil {
			err = json.Unmarshal(data, before)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", f.Before, err)
		}
	}
	began := time.Now()
	r := report{Machine: thisMachine(), Began: began.UTC().Truncate(time.Second)}
	failed := 0
	for _, s := range sections() {
		if len(f.Only) > 0 && !slices.Contains(f.Only, s.name) {
			continue
		}
		for _, run := range s.runs {
			fmt.Fprintf(os.Stderr, "%4.0f s  %s: %s\n", time.Since(began).Seconds(), s.name, run.pkg)
			v, skips, err := measure(ctx, run, f.Count)
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				failed++
			}
			r.add(s, run, v, skips, err)
		}
		r.derive(s)
	}
	r.Seconds = time.Since(began).Seconds()
	if before != nil {
		r.compare(*before)
	}
	r.print(os.Stdout)
	if err := r.write(f.JSON); err != nil {
		return err
	}
	fmt.Printf("\nall of it as JSON: %s\n", f.JSON)
	if failed > 0 {
		return fmt.Errorf("%d of the runs failed", failed)
	}
	return nil
}

func (r *report) write(path string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o666)
}
