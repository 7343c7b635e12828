//go:build !linux

package child

import (
	"os"
	"syscall"
)

// attributes put a process into a group of its own. When this server ends it sees the end of its requests, and ends.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// kill ends a process and its group.
func kill(p *os.Process, _ string) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // it may have ended
}
