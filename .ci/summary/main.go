// Command summary reads `go test -json` on standard input, prints what failed and, last, how many tests passed, failed
// and were skipped. It exits with 1 where something failed.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"
)

type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

func main() {
	output := map[string][]string{}
	passed, failed, skipped := 0, 0, 0
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
			} else {
				skipped++
				fmt.Printf("skip  %s: %s", name, strings.Join(output[name], ""))
			}
			delete(output, name)
		case "fail", "build-fail":
			fmt.Printf("FAIL  %s\n%s", name, strings.Join(output[name], ""))
			if e.Test != "" || e.Action == "build-fail" {
				failed++
			}
			delete(output, name)
		}
	}
	if err := in.Err(); err != nil {
		fmt.Println("reading the test output:", err)
		failed++
	}
	fmt.Printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped)
	if failed > 0 {
		os.Exit(1)
	}
}
