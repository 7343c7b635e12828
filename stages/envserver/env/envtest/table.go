package envtest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

var update = flag.Bool("update", false, "write measured figures into the table of environments")

// Row holds a row of the table of environments in the Markdown file to what is measured: mean reward of the reference player
// and of the random one over the first n eval tasks. The row is the one whose first cell is the label; its last two cells are
// the figures, with two decimals. With -update the test writes them anew (go test -p 1, since packages share the file).
func Row(t *testing.T, file, label string, e env.Environment, n int, reference, random Player) {
	t.Helper()
	row := ""
	for _, player := range []Player{reference, random} {
		mean, err := Mean(context.Background(), e, env.Eval, n, player)
		if err != nil {
			t.Fatal(err)
		}
		row += fmt.Sprintf(" %.2f |", mean)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for i, line := range lines {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "| "+label+" |") || len(cells) < 5 {
			continue
		}
		want := strings.Join(cells[:len(cells)-3], "|") + "|" + row
		if line == want {
			return
		}
		if !*update {
			t.Fatalf("%s: the row of %s says %q, measured: %q", file, label, line, want)
		}
		lines[i] = want
		if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("%s has no row that begins with %q", file, "| "+label+" |")
}
