package remote

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/prl-project/prl/stages/inference"
)

// target is a version as servers load it.
type target struct {
	version int64
	label   string // what servers sample under, once they have it
	folder  string // where it is, as the servers see it
}

// newLoadingLabel is what a server is called while its weights are replaced: where that is broken off, nobody takes them for
// what they were. It is another one for every load, which so finds out that the server has been through another since.
func newLoadingLabel() string { return fmt.Sprintf("prl/loading/%016x", rand.Uint64()) }

// labelOf names a version: the same for the same weights of the same run, whoever loaded them.
func labelOf(run string, version int64, weights [sha256.Size]byte) string {
	return fmt.Sprintf("prl/%s/%d/%x", run, version, weights[:6])
}

// folders are the Hugging Face folders of versions, in a directory that belongs to this stage alone.
type folders struct {
	run       string
	dir       string // on this machine
	onServers string // the same as the servers see it

	writing sync.Mutex // one version is written at a time, however long that takes
	swept   bool

	mu      sync.Mutex // held for moments
	targets map[int64]target
}

func newFolders(run, dir, onServers string) *folders {
	if onServers == "" {
		onServers = dir
	}
	return &folders{run: run, dir: dir, onServers: onServers, targets: map[int64]target{}}
}

// put writes a version, unless it is there. A folder has its name only when it is whole and on the disk. With the first one,
// what earlier processes left is removed.
func (f *folders) put(p inference.Policy) (target, error) {
	f.writing.Lock()
	defer f.writing.Unlock()
	sum := sha256.Sum256(p.Weights)
	name := fmt.Sprintf("v%06d-%x", p.Version, sum[:6])
	t := target{version: p.Version, label: labelOf(f.run, p.Version, sum), folder: filepath.Join(f.onServers, name)}
	if there, ok := f.of(p.Version); ok && there == t {
		return t, nil
	}
	if err := f.sweep(name); err != nil {
		return t, err
	}
	if err := f.write(name, p, sum); err != nil {
		return t, fmt.Errorf("put policy version %d where the servers find it (inference.remote.dir): %w", p.Version, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.targets[p.Version] = t
	return t, nil
}

// sweep removes folders of earlier processes, all but one.
func (f *folders) sweep(but string) error {
	if f.swept {
		return nil
	}
	entries, err := os.ReadDir(f.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look at inference.remote.dir: %w", err)
	}
	for _, e := range entries {
		if e.Name() == but || !strings.HasPrefix(e.Name(), "v") && !strings.HasPrefix(e.Name(), temporary) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(f.dir, e.Name())); err != nil {
			return fmt.Errorf("remove weights of an earlier start from inference.remote.dir: %w", err)
		}
	}
	f.swept = true
	return nil
}

// temporary begins the names of folders that are not whole.
const temporary = ".writing-"

func (f *folders) write(name string, p inference.Policy, sum [sha256.Size]byte) (err error) {
	final := filepath.Join(f.dir, name)
	if holds(filepath.Join(final, "model.safetensors"), sum) {
		return nil
	}
	if err := os.RemoveAll(final); err != nil {
		return err
	}
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(f.dir, temporary)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if err := os.Chmod(dir, 0o755); err != nil { // servers may be another user's
		return err
	}
	for file, data := range map[string][]byte{"config.json": p.Config, "tokenizer.json": p.Tokenizer, "model.safetensors": p.Weights} {
		if err := writeSynced(filepath.Join(dir, file), data); err != nil {
			return err
		}
	}
	if err := syncDir(dir); err != nil {
		return err
	}
	if err := os.Rename(dir, final); err != nil {
		return err
	}
	return syncDir(f.dir)
}

// holds says whether a file is there and has a SHA-256.
func holds(path string, sum [sha256.Size]byte) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer file.Close()
	h := sha256.New()
	_, err = io.Copy(h, file)
	return err == nil && [sha256.Size]byte(h.Sum(nil)) == sum
}

func writeSynced(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Sync(), file.Close())
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// of is the folder of a version that was put and not removed.
func (f *folders) of(version int64) (target, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	t, ok := f.targets[version]
	return t, ok
}

// remove gives up a version.
func (f *folders) remove(version int64) error {
	t, ok := f.of(version)
	if !ok {
		return nil
	}
	f.mu.Lock()
	delete(f.targets, version)
	f.mu.Unlock()
	return os.RemoveAll(filepath.Join(f.dir, filepath.Base(t.folder)))
}
