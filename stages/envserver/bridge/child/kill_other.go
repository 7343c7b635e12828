//go:build !linux

package child

import (
	"os"
	"syscall"
)

// Attributes put a process into a group of its own. When this server ends, it has to see that at the end of its input.
func Attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Kill ends a process and its group.
func Kill(p *os.Process, _ string) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL) // it may have ended
}
