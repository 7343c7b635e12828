package sink

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// ErrTaken says that another sink has published the file first: what is buffered is thrown away, and the chain is
// opened again.
var ErrTaken = errors.New("another sink has written this part")

const (
	tempSuffix = ".tmp"
	// tempLife is the age at which an unpublished file is one that a killed sink has left: publishing takes seconds.
	tempLife = time.Hour
)

// publish makes the file dir/name appear at once, whole, durable, and only if there is none of that name: else
// ErrTaken. The file is written under another name and linked, for link(2), unlike rename(2), never replaces a file.
func publish(dir, name string, write func(io.Writer) error) (err error) {
	temp, err := os.CreateTemp(dir, "."+name+".*"+tempSuffix)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer func() {
		err = errors.Join(err, removed(temp.Name()))
	}()
	buffered := bufio.NewWriterSize(temp, 1<<18)
	if err = pipeline.WriteFault(); err == nil {
		err = write(buffered)
	}
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil {
		err = temp.Chmod(0o644)
	}
	if err == nil {
		err = temp.Sync()
	}
	if err = errors.Join(err, temp.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	pipeline.Crash("sink-written")
	err = os.Link(temp.Name(), filepath.Join(dir, name))
	if errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrNotExist) { // taken, or swept by one that thought us dead
		return ErrTaken
	}
	if err != nil {
		return fmt.Errorf("publish %s: %w", name, err)
	}
	pipeline.Crash("sink-linked")
	return syncDir(dir)
}

func removed(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// makeDir makes a folder and its parents so that they survive a power cut.
func makeDir(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if parent != dir {
		if err := makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make the sink's folder: %w", err)
	}
	return syncDir(parent)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", dir, err)
	}
	return nil
}

// sweep removes what killed sinks have left unpublished.
func sweep(dir string, now time.Time) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list the sink's files: %w", err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") || !strings.HasSuffix(e.Name(), tempSuffix) {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("list the sink's files: %w", err)
		}
		if now.Sub(info.ModTime()) > tempLife {
			if err := removed(filepath.Join(dir, e.Name())); err != nil {
				return fmt.Errorf("remove a leftover: %w", err)
			}
		}
	}
	return nil
}
