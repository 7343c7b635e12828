package logs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
)

// A File is a log of a bounded size: when it is full it becomes <name>.1, in place of the one before, and begins anew. It is
// safe for concurrent use. Writing never fails, as nobody stops for a log; after a failure nothing more is written.
type File struct {
	path  string
	limit int64

	mu     sync.Mutex
	file   *os.File
	size   int64
	failed bool
	users  int
}

var (
	openMu sync.Mutex
	open   = map[string]*File{} // by path: two that turn one file would lose lines
)

// Open makes the log <folder>/<name>.log in files of limit bytes, or gives the one that this process has open; nothing is kept
// if the folder is empty. The file is made when there is something to write.
func Open(folder, name string, limit int64) *File {
	if folder == "" {
		return &File{limit: limit, users: 1}
	}
	path := filepath.Join(folder, name+".log")
	openMu.Lock()
	defer openMu.Unlock()
	f := open[path]
	if f == nil {
		f = &File{path: path, limit: limit}
		open[path] = f
	}
	f.users++
	return f
}

// Path is the newest file; empty for none.
func (f *File) Path() string { return f.path }

// Write implements io.Writer.
func (f *File) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" || f.failed {
		return len(b), nil
	}
	if f.file == nil || f.size > f.limit {
		if f.failed = f.turn() != nil; f.failed {
			return len(b), nil
		}
	}
	n, err := f.file.Write(b)
	f.size += int64(n)
	f.failed = err != nil
	return len(b), nil
}

// turn opens the file, and puts one that is full aside.
func (f *File) turn() error {
	if f.file != nil {
		if err := errors.Join(f.file.Close(), os.Rename(f.path, f.path+".1")); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	at, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	f.file, f.size = file, at.Size()
	return nil
}

// Close ends one use of the log; after the last one what is written is lost.
func (f *File) Close() error {
	openMu.Lock()
	defer openMu.Unlock()
	if f.users--; f.users > 0 {
		return nil
	}
	if open[f.path] == f {
		delete(open, f.path)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = true
	if f.file == nil {
		return nil
	}
	file := f.file
	f.file = nil
	return file.Close()
}
