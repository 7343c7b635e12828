package export

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// replaced ends the name of an export that makes room for the next: it is beside the draft that takes its place.
const replaced = ".old"

// draftPrefix begins the names of the drafts of an export.
func draftPrefix(out string) string { return "." + filepath.Base(out) + ".draft-" }

// newDraft makes an empty folder beside the place of an export. It is the process's own until lock is closed or the process ends.
func newDraft(out string) (dir string, lock *os.File, err error) {
	const tries = 100 // another export may take it for a killed one's before it is locked
	for range tries {
		if dir, err = os.MkdirTemp(filepath.Dir(out), draftPrefix(out)); err != nil {
			return "", nil, err
		}
		if lock, err = lockFolder(dir); err != nil {
			_ = os.Remove(dir) // it is empty, or gone
			continue
		}
		if _, err = os.Lstat(dir); err == nil {
			return dir, lock, nil
		}
		err = errors.Join(err, lock.Close())
	}
	return "", nil, err
}

// living reports whether a process holds a draft.
func living(draft string) bool {
	lock, err := lockFolder(draft)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	return lock.Close() != nil
}

// clearAway removes what exports to out have left beside it that were killed, and puts an export back that one of them had taken away.
// What a living process holds stays as it is.
func clearAway(out string) error {
	entries, err := os.ReadDir(filepath.Dir(out))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	for _, e := range entries {
		number, ours := strings.CutPrefix(e.Name(), draftPrefix(out))
		number, old := strings.CutSuffix(number, replaced)
		if !ours || !e.IsDir() || strings.Trim(number, "0123456789") != "" {
			continue
		}
		dir := filepath.Join(filepath.Dir(out), e.Name())
		if old && living(strings.TrimSuffix(dir, replaced)) {
			continue // about to take its place
		}
		lock, err := lockFolder(dir)
		if err != nil {
			continue // a living one's, or gone by now
		}
		if _, err = os.Lstat(out); old && errors.Is(err, fs.ErrNotExist) {
			err = os.Rename(dir, out)
		} else {
			err = os.RemoveAll(dir)
		}
		if err := errors.Join(err, lock.Close()); err != nil {
			return fmt.Errorf("clear away what a killed export has left: %w", err)
		}
	}
	return nil
}
