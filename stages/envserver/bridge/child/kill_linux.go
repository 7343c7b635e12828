package child

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// attributes put a process into a group of its own. It gets the signal when the thread ends that has started it.
func attributes(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
}

// kill ends a group, and what has left it: the marker is in the environment of all that was started there. One that is found
// may start another before it is gone, so it looks until there is none.
func kill(group int, marker string) {
	for deadline := time.Now().Add(killTime); ; time.Sleep(2 * time.Millisecond) {
		_ = syscall.Kill(-group, syscall.SIGKILL) // it may have ended
		pids := marked(marker)
		if len(pids) == 0 || time.Now().After(deadline) {
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

// alive says that a process has not ended; what nobody has waited for has.
func alive(pid int) bool {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !bytes.Contains(text, []byte(") Z "))
}
