package pipeline

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// A trap is where tests send the process a signal: <place>:<n> does it the nth time it gets there.
type trap struct {
	place  string
	left   atomic.Int64
	signal syscall.Signal
}

// PRL_CRASH_AT ends the process with SIGKILL, PRL_PAUSE_AT stops it with SIGSTOP until a SIGCONT.
var crashAt, pauseAt trap

func init() {
	crashAt.set(os.Getenv("PRL_CRASH_AT"), syscall.SIGKILL)
	pauseAt.set(os.Getenv("PRL_PAUSE_AT"), syscall.SIGSTOP)
}

func (t *trap) set(spec string, signal syscall.Signal) {
	place, n, _ := strings.Cut(spec, ":")
	if times, err := strconv.Atoi(n); err == nil {
		t.place, t.signal = place, signal
		t.left.Store(int64(times))
	}
}

func (t *trap) pass(place string) {
	if t.place == place && t.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), t.signal) // nothing is left to report an error
		time.Sleep(time.Second)                 // other threads may take the signal: none gets past this place before it
	}
}

// Crash marks a place at which a crash or a pause of any length must change no result (I4). It does nothing but in tests
// that set PRL_CRASH_AT or PRL_PAUSE_AT.
func Crash(place string) {
	crashAt.pass(place)
	pauseAt.pass(place)
}
