package child

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Attributes put a process into a group of its own that gets the signal when this server ends, or the thread that has started it.
func Attributes(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
}

// Kill ends a process, its group, and what has left the group: the marker is in the environment of all that it has started.
func Kill(p *os.Process, marker string) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // it may have ended
	for range 3 {                             // one may have started another while we looked
		pids := marked(marker)
		if len(pids) == 0 {
			return
		}
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// marked are the processes that began with a variable in their environment, those that have ended left out.
func marked(variable string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*/environ") // the pattern is a good one
	for _, path := range all {
		text, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(text), "\x00"), variable) {
			continue // another user's, or gone
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
