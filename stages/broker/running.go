package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Running is the address of the broker that serves dir at the moment; empty where none does, or it is not ready yet, or
// stops.
func Running(dir string) (addr string, err error) {
	f, err := os.Open(dir + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look whether a broker runs: %w", err)
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if err == nil {
		return "", nil // nobody holds it; closing lets go of it again
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return "", fmt.Errorf("look whether a broker runs: lock %s: %w", f.Name(), err)
	}
	text, err := os.ReadFile(f.Name())
	if err != nil {
		return "", fmt.Errorf("look whether a broker runs: %w", err)
	}
	return strings.TrimSpace(string(text)), nil
}

// tell writes a broker's address into its lock, for Running; an empty one once it stops.
func tell(dir, addr string) error {
	if err := os.WriteFile(dir+".lock", []byte(addr+"\n"), 0o644); err != nil {
		return fmt.Errorf("write down the broker's address: %w", err)
	}
	return nil
}
