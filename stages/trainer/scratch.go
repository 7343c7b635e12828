package trainer

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// A scratch is a folder for files in the making, on the disk of the blobs, so that they need not be copied. It is gone with
// the process: what one left behind that was killed, the next removes.
type scratch struct {
	dir  string
	lock *os.File
	n    int
}

const scratchPrefix = "prl-trainer-"

// openScratch makes one in folder at, or where temporary files go if that is empty.
func openScratch(at string) (*scratch, error) {
	if at == "" {
		at = os.TempDir()
	}
	at, err := filepath.Abs(at)
	if err != nil {
		return nil, fmt.Errorf("make a folder for files in the making: %w", err)
	}
	if err := os.MkdirAll(at, 0o755); err != nil {
		return nil, fmt.Errorf("make a folder for files in the making: %w", err)
	}
	left, err := filepath.Glob(filepath.Join(at, scratchPrefix+"*"))
	if err != nil {
		return nil, fmt.Errorf("look for files in the making: %w", err)
	}
	for _, dir := range left {
		if lock, err := lockFolder(dir); err == nil {
			if err := errors.Join(os.RemoveAll(dir), lock.Close()); err != nil {
				return nil, fmt.Errorf("remove what a killed trainer left: %w", err)
			}
		}
	}
	draft, err := os.MkdirTemp(at, "."+scratchPrefix) // which nobody looks for until it is locked
	if err != nil {
		return nil, fmt.Errorf("make a folder for files in the making: %w", err)
	}
	lock, err := lockFolder(draft)
	if err != nil {
		return nil, fmt.Errorf("lock the folder for files in the making: %w", err)
	}
	dir := filepath.Join(at, strings.TrimPrefix(filepath.Base(draft), "."))
	if err := os.Rename(draft, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("name the folder for files in the making: %w", err), lock.Close())
	}
	return &scratch{dir: dir, lock: lock}, nil
}

// lockFolder holds a folder until the file is closed or the process ends. It fails where another process holds it.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// path is that of a new file.
func (s *scratch) path(name string) string {
	s.n++
	return filepath.Join(s.dir, fmt.Sprintf("%d-%s", s.n, name))
}

func (s *scratch) remove() error { return errors.Join(os.RemoveAll(s.dir), s.lock.Close()) }
