package pipeline

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// crashAt is where tests kill the process: PRL_CRASH_AT=<place>:<n> ends it with SIGKILL the nth time it gets there.
var crashAt struct {
	place string
	left  atomic.Int64
}

func init() {
	place, n, _ := strings.Cut(os.Getenv("PRL_CRASH_AT"), ":")
	if times, err := strconv.Atoi(n); err == nil {
		crashAt.place = place
		crashAt.left.Store(int64(times))
	}
}

// Crash marks a place at which a crash must change no result (I4). It does nothing but in tests that set PRL_CRASH_AT.
func Crash(place string) {
	if crashAt.place == place && crashAt.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing is left to report an error
	}
}
