// Command summary reads `go test -json` on standard input, prints what failed and, last, which tests took longest, which were
// skipped, why, and how many passed, failed and were skipped. It exits with 1 where something failed.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// longest is how many of the slowest tests are named.
const longest = 20

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

func main() {
	output := map[string][]string{}
	skips := map[string][]string{} // names by reason
	passed, failed, skipped := 0, 0, 0
	took := map[string]float64{} // seconds of tests that are not part of others
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	for in.Scan() {
		var e event
		if json.Unmarshal(in.Bytes(), &e) != nil {
			fmt.Println(in.Text())
			continue
		}
		name := e.Package + e.ImportPath + " " + e.Test
		switch e.Action {
		case "output", "build-output":
			output[name] = append(output[name], e.Output)
		case "pass", "skip":
			if e.Test == "" {
				fmt.Printf("ok    %-70s %6.1fs\n", e.Package, e.Elapsed)
			} else if e.Action == "pass" {
				passed++
				if !strings.Contains(e.Test, "/") {
					took[name] = e.Elapsed
				}
			} else {
				skipped++
				why := reason(output[name])
				skips[why] = append(skips[why], name)
			}
			delete(output, name)
		case "fail", "build-fail":
			fmt.Printf("FAIL  %s\n%s", name, strings.Join(output[name], ""))
			delete(output, name)
			if e.Test != "" || e.Action == "build-fail" {
				failed++
				continue
			}
			// What had not ended when the package did, by its time limit or a panic, is why.
			for _, test := range slices.Sorted(maps.Keys(output)) {
				if strings.HasPrefix(test, name) {
					fmt.Printf("FAIL  %s\n%s", test, strings.Join(output[test], ""))
					failed++
					delete(output, test)
				}
			}
		}
	}
	if err := in.Err(); err != nil {
		fmt.Println("reading the test output:", err)
		failed++
	}
	slow := slices.SortedFunc(maps.Keys(took), func(a, b string) int { return cmp.Compare(took[b], took[a]) })
	for _, name := range slow[:min(longest, len(slow))] {
		fmt.Printf("%6.1fs %s\n", took[name], name)
	}
	for _, why := range slices.Sorted(maps.Keys(skips)) {
		fmt.Printf("skipped: %s\n", why)
		for _, name := range skips[why] {
			fmt.Printf("      %s\n", name)
		}
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		os.Exit(1)
	}
}

// place is what `go test` puts before what a test says.
var place = regexp.MustCompile(`^\S+\.go:\d+: `)

// reason is what a test said, without where and without the lines of `go test`.
func reason(output []string) string {
	var said []string
	for _, line := range output {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- ") {
			said = append(said, place.ReplaceAllString(text, ""))
		}
	}
	if len(said) == 0 {
		return "no reason given"
	}
	return strings.Join(said, " ")
}
