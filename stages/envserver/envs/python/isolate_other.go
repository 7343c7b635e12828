//go:build !linux

package python

import (
	"syscall"
)

// attributes put a process into a group of its own. Root's server runs it as nobody.
func (s *sandbox) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if user := codeUser(); user != 0 {
		a.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
	}
	return a
}

// canIsolate says that this system has no namespaces.
const canIsolate = false
