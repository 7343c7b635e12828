package export

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/prl-project/prl/pipeline"
)

// manifest is the file that says what an export is.
const manifest = "export.json"

// A folder is an export in the making. It is beside its place until it is whole.
type folder struct {
	cfg    Config
	draft  string
	lock   *os.File // of the draft
	splits map[string][]*rows
	old    *os.File // what is replaced, locked; nil for nothing
}

// newFolder makes the draft of an export, once those of killed ones are gone. A place that is taken is refused, or, with force, if
// what is there is no export or one that another process writes.
func newFolder(cfg Config) (f *folder, err error) {
	f = &folder{cfg: cfg, splits: map[string][]*rows{}}
	if err := clearAway(cfg.Out); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(cfg.Out); err == nil {
		if !cfg.Force {
			return nil, fmt.Errorf("%s is there already: name another folder (--out), or replace it (--force)", cfg.Out)
		}
		if _, err := os.Stat(filepath.Join(cfg.Out, manifest)); err != nil {
			return nil, fmt.Errorf("%s is no export, for it has no %s: --force replaces exports only; name another folder (--out)", cfg.Out, manifest)
		}
		if f.old, err = lockFolder(cfg.Out); err != nil {
			return nil, err
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, f.old.Close())
			}
		}()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(cfg.Out), 0o755); err != nil {
		return nil, err
	}
	if f.draft, f.lock, err = newDraft(cfg.Out); err != nil {
		return nil, err
	}
	return f, os.Chmod(f.draft, 0o755)
}

// lockFolder holds the folder of an export until the file is closed.
func lockFolder(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the folder of an export: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, fmt.Errorf("%s is another process's, which exports to it (or it cannot be locked): %w", dir, errors.Join(err, f.Close()))
	}
	return f, nil
}

// add writes a row to a split.
func (f *folder) add(split string, row Row) error {
	if f.splits[split] == nil {
		if err := f.begin(split); err != nil {
			return err
		}
	}
	for _, w := range f.splits[split] {
		if err := w.add(row); err != nil {
			return err
		}
	}
	return nil
}

func (f *folder) begin(split string) error {
	for _, format := range f.cfg.Formats {
		w, err := newRows(filepath.Join(f.draft, split+"."+format), format)
		if err != nil {
			return err
		}
		f.splits[split] = append(f.splits[split], w)
	}
	return nil
}

// publish puts the folder where it belongs. A split train is always there.
func (f *folder) publish(s *Summary) error {
	if f.splits[splitTrain] == nil {
		if err := f.begin(splitTrain); err != nil {
			return err
		}
	}
	for _, split := range f.splits {
		for _, w := range split {
			if err := w.close(); err != nil {
				return err
			}
		}
	}
	if err := writeSynced(filepath.Join(f.draft, "README.md"), card(s, f.cfg.Formats, "")); err != nil {
		return err
	}
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := writeSynced(filepath.Join(f.draft, manifest), append(text, '\n')); err != nil {
		return err
	}
	if err := syncFolder(f.draft); err != nil {
		return err
	}
	pipeline.Crash(Name + ".before-rename")
	old := ""
	if f.cfg.Force {
		old = f.draft + replaced
		if err := os.Rename(f.cfg.Out, old); errors.Is(err, fs.ErrNotExist) {
			old = ""
		} else if err != nil {
			return err
		}
	}
	pipeline.Crash(Name + ".between-renames")
	if err := os.Rename(f.draft, f.cfg.Out); err != nil {
		return err
	}
	pipeline.Crash(Name + ".renamed")
	f.draft = ""
	if old != "" {
		if err := os.RemoveAll(old); err != nil {
			return err
		}
	}
	return syncFolder(filepath.Dir(f.cfg.Out))
}

// discard removes what was not published, and lets go what was to be replaced.
func (f *folder) discard() error {
	if f.old != nil {
		_ = f.old.Close() // nothing was written to it
	}
	defer f.lock.Close() // nothing is written to it
	if f.draft == "" {
		return nil
	}
	for _, split := range f.splits {
		for _, w := range split {
			_ = w.file.Close() // it goes
		}
	}
	return os.RemoveAll(f.draft)
}

// rows is a file of rows in one of the formats.
type rows struct {
	file    *os.File
	buffer  *bufio.Writer
	parquet *parquet.GenericWriter[Row] // nil for JSONL
}

func newRows(path, format string) (*rows, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	w := &rows{file: file, buffer: bufio.NewWriterSize(file, 1<<18)}
	if format == Parquet {
		w.parquet = parquet.NewGenericWriter[Row](w.buffer, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("prl", Name, ""))
	}
	return w, nil
}

func (w *rows) add(row Row) error {
	if w.parquet != nil {
		_, err := w.parquet.Write([]Row{row})
		return err
	}
	return encodeLine(w.buffer, row)
}

func encodeLine(to io.Writer, row Row) error {
	e := json.NewEncoder(to)
	e.SetEscapeHTML(false)
	return e.Encode(row)
}

func (w *rows) close() (err error) {
	if w.parquet != nil {
		err = w.parquet.Close()
	}
	return errors.Join(err, w.buffer.Flush(), w.file.Sync(), w.file.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close())
}

func syncFolder(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// splitsOf are the splits that an export has.
func splitsOf(s *Summary) []string {
	return slices.DeleteFunc([]string{splitTrain, splitTest}, func(name string) bool { return name == splitTest && s.Test == 0 })
}
