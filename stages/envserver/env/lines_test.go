package env_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

func TestLines(t *testing.T) {
	for _, c := range []struct{ name, file, want, fails string }{
		{"blank lines count but are passed over", "a\n\n  \n b \n", "1:a 4:b ", ""},
		{"the last line needs no end", "a\r\nb", "1:a 2:b ", ""},
		{"an error names file and line", "a\n\nbad\nc", "1:a ", "file:3: no"},
		{"so does a line that is too long", "a\n" + strings.Repeat("x", env.LongestLine+1), "1:a ", "file:2: longer than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, failed := "", ""
			err := env.Lines("file", strings.NewReader(c.file), func(n int, line []byte) error {
				if string(line) == "bad" {
					return errors.New("no")
				}
				got += fmt.Sprintf("%d:%s ", n, line)
				return nil
			})
			if err != nil {
				failed = err.Error()
			}
			if got != c.want || failed != c.fails {
				t.Errorf("read %q, failed with %q; want %q, %q", got, failed, c.want, c.fails)
			}
		})
	}
}

func TestDeal(t *testing.T) {
	tasks := strings.Fields("one two three four five six seven eight nine ten")
	dealt := env.Deal(tasks, 30, func(t string) string { return t })
	train, eval := env.HoldOut(tasks, 30)
	if fmt.Sprint(dealt[env.Train], dealt[env.Eval]) != fmt.Sprint(train, eval) || len(eval) == 0 {
		t.Errorf("dealt %v, texts are held out as %v and %v", dealt, train, eval)
	}
}
