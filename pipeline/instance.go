package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// maxInstances bounds the numbers that are tried for a default instance name.
const maxInstances = 256

// ClaimInstance gives the process a name that a restart gets again: the host's and the first number whose lock file in
// dir is free. The lock is held until release is called or the process ends.
func ClaimInstance(dir, stage string) (name string, release func() error, err error) {
	host, err := os.Hostname()
	if err != nil {
		return "", nil, fmt.Errorf("name this instance: %w (--instance gives a name)", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, fmt.Errorf("name this instance: %w", err)
	}
	for n := range maxInstances {
		name := fmt.Sprintf("%s-%d", host, n)
		f, err := os.OpenFile(filepath.Join(dir, stage+"."+name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
		if err != nil {
			return "", nil, fmt.Errorf("name this instance: %w", err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return name, f.Close, nil
		} else if !errors.Is(err, syscall.EWOULDBLOCK) {
			return "", nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		if err := f.Close(); err != nil {
			return "", nil, fmt.Errorf("name this instance: %w", err)
		}
	}
	return "", nil, fmt.Errorf("%d instances of %s run on this host already: --instance gives another name", maxInstances, stage)
}

// NextInstance is the name that ClaimInstance would give now. It claims nothing.
func NextInstance(dir, stage string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "host"
	}
	for n := range maxInstances {
		name := fmt.Sprintf("%s-%d", host, n)
		f, err := os.Open(filepath.Join(dir, stage+"."+name+".lock"))
		if err != nil {
			return name // nobody has had it
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
		_ = f.Close() // with it goes the lock
		if err == nil {
			return name
		}
	}
	return host
}
