package python

import (
	"os"
	"syscall"
)

// attributes put a process into a group and, where the system lets it, into namespaces of its own: users, mounts, processes, network,
// host name and System V objects. In them it is root, which it needs to shut itself in, and gives up before the code begins. Without them root's server runs it as nobody.
func (s *sandbox) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if !s.namespaces {
		if user := codeUser(); user != 0 {
			a.Credential = &syscall.Credential{Uid: uint32(user), Gid: uint32(user)}
		}
		return a
	}
	a.Cloneflags = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC
	a.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	a.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	if user := codeUser(); user != 0 {
		a.UidMappings = append(a.UidMappings, syscall.SysProcIDMap{ContainerID: user, HostID: user, Size: 1})
		a.GidMappings = append(a.GidMappings, syscall.SysProcIDMap{ContainerID: user, HostID: user, Size: 1})
		a.GidMappingsEnableSetgroups = true
	}
	return a
}

// canIsolate says that this system has namespaces at all; whether it gives them to us shows when one is tried.
const canIsolate = true
