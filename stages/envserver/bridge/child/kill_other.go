//go:build !linux

package child

import "syscall"

// attributes put a process into a group of its own. When this server ends, it has to see that at the end of its input.
func attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// kill ends a group.
func kill(group int, _ string) {
	_ = syscall.Kill(-group, syscall.SIGKILL) // it may have ended
}

// alive says that a process has not ended.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }
