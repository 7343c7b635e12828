package stages

import (
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prl-project/prl/stages/internal/progress"
)

// Terminal is where a process says what it does and where it logs. Where both are a terminal, what is drawn in place stays whole
// whatever is logged meanwhile.
func Terminal(stdout, stderr *os.File) (out, logs io.Writer) {
	out, logs = stdout, stderr
	t, ok := progress.NewTerminal(stdout)
	if ok {
		out = t
	}
	if e, terminal := progress.NewTerminal(stderr); terminal && ok {
		logs = t
	} else if terminal {
		logs = e
	}
	return out, logs
}

// Doing says on out that something goes on, until stop is called.
func Doing(out io.Writer, what string) (stop func()) {
	return progress.Doing(out, func(since time.Duration) string { return fmt.Sprintf("%s · for %v", what, since) })
}
