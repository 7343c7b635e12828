package pipeline

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gocloud.dev/blob"

	"github.com/prl-project/prl/schemas"
)

const testRange = 1 << 20

// ranged is a store in memory that is read in ranges of 1 MiB, and a blob of it: three ranges and a rest.
func ranged(t *testing.T) (*Blobs, *disk, schemas.BlobRef, []byte) {
	t.Helper()
	d := &disk{blobs: map[string][]byte{}}
	s := newBlobs(blob.NewBucket(d), "")
	s.Configure(BlobsConfig{Parallel: 2, RangeMiB: 1}, s.log)
	data := random(3*testRange + 17)
	ref, err := s.Put(t.Context(), "weights", data)
	if err != nil {
		t.Fatal(err)
	}
	return s, d, ref, data
}

func random(n int) []byte {
	data := make([]byte, n)
	rng := rand.NewChaCha8([32]byte{})
	rng.Read(data) //nolint:errcheck // it never fails
	return data
}

// fetch is Fetch to a file of the test's own, whose content it returns; what is left beside the file is a failure.
func fetch(t *testing.T, s *Blobs, ref schemas.BlobRef) ([]byte, error) {
	t.Helper()
	dir := t.TempDir()
	err := s.Fetch(t.Context(), ref, filepath.Join(dir, "fetched"))
	left, readErr := os.ReadDir(dir)
	if readErr != nil || len(left) > 1 || err != nil && len(left) > 0 {
		t.Errorf("after error %v: %v are in the folder, %v", err, left, readErr)
	}
	if err != nil {
		return nil, err
	}
	data, readErr := os.ReadFile(filepath.Join(dir, "fetched"))
	if readErr != nil {
		t.Error(readErr)
	}
	return data, nil
}

// both reads a blob into memory and to a file.
func both(t *testing.T, s *Blobs, ref schemas.BlobRef, check func(how string, data []byte, err error)) {
	t.Helper()
	data, err := s.Get(t.Context(), ref)
	check("into memory", data, err)
	data, err = fetch(t, s, ref)
	check("to a file", data, err)
}

// TestRangesOfABlob reads blobs of lengths about those of a range: in ranges of 1 MiB, several at once.
func TestRangesOfABlob(t *testing.T) {
	s, d, _, _ := ranged(t)
	for _, n := range []int{0, 1, testRange - 1, testRange, testRange + 1, 5 * testRange} {
		want := random(n)
		ref, err := s.Put(t.Context(), "weights", want)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var ranges []int64
		d.reads = func(offset int64, r io.Reader) io.Reader {
			mu.Lock()
			defer mu.Unlock()
			ranges = append(ranges, offset)
			return r
		}
		both(t, s, ref, func(how string, got []byte, err error) {
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes %s: %d came, error %v", n, how, len(got), err)
			}
			slices.Sort(ranges)
			if len(ranges) != max(1, (n+testRange-1)/testRange) || ranges[len(ranges)-1] != int64(len(ranges)-1)*testRange {
				t.Errorf("%d bytes %s: ranges at %v", n, how, ranges)
			}
			ranges = nil
		})
		d.reads = nil
	}
}

// TestRangesAreReadAtOnce: no range of the first two comes before the other has been asked for.
func TestRangesAreReadAtOnce(t *testing.T) {
	s, d, ref, want := ranged(t)
	var asked sync.WaitGroup
	asked.Add(2)
	d.reads = func(offset int64, r io.Reader) io.Reader {
		if offset >= 2*testRange {
			return r
		}
		asked.Done()
		return readerFunc(func(p []byte) (int, error) { asked.Wait(); return r.Read(p) })
	}
	if got, err := s.Get(t.Context(), ref); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, error %v", len(got), err)
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestAWrongByteIsRefused flips one byte of a blob, wherever it is, and makes it longer and shorter.
func TestAWrongByteIsRefused(t *testing.T) {
	s, d, ref, data := ranged(t)
	spoiled := [][]byte{data[:len(data)-1], append(slices.Clone(data), 0), nil}
	for _, at := range []int{0, 1, testRange - 1, testRange, 2*testRange + 5, len(data) - 1} {
		other := slices.Clone(data)
		other[at] ^= 1
		spoiled = append(spoiled, other)
	}
	for i, other := range spoiled {
		d.blobs[ref.URI] = other
		both(t, s, ref, func(how string, got []byte, err error) {
			if got != nil || !errors.Is(err, errWrongBlob) || errors.Is(err, ErrTransient) {
				t.Errorf("%d %s: %d bytes, error %v", i, how, len(got), err)
			}
		})
	}
	d.blobs[ref.URI] = data
	huge := ref
	huge.Bytes = 1 << 60
	negative := ref
	negative.Bytes = -1
	for _, ref := range []schemas.BlobRef{huge, negative} {
		both(t, s, ref, func(how string, _ []byte, err error) {
			if !errors.Is(err, errWrongBlob) {
				t.Errorf("%d bytes %s: error %v", ref.Bytes, how, err)
			}
		})
	}
	both(t, s, schemas.BlobRef{URI: "weights/none", Bytes: 5 * testRange}, func(how string, _ []byte, err error) {
		if err == nil || errors.Is(err, ErrTransient) {
			t.Errorf("a blob that is not there, %s: error %v", how, err)
		}
	})
}

// TestABrokenRangeIsReadAgain breaks a range in the middle: once, and the blob comes whole; each time, and it is
// ErrTransient.
func TestABrokenRangeIsReadAgain(t *testing.T) {
	s, d, ref, want := ranged(t)
	for _, times := range []int{1, rangeAttempts} {
		var mu sync.Mutex
		broken := 0
		d.reads = func(offset int64, r io.Reader) io.Reader {
			mu.Lock()
			defer mu.Unlock()
			if offset != testRange || broken == times {
				return r
			}
			broken++
			return io.LimitReader(r, 1000)
		}
		both(t, s, ref, func(how string, got []byte, err error) {
			if broken != times {
				t.Fatalf("%s: broken %d times, want %d", how, broken, times)
			}
			if times == 1 && (err != nil || !bytes.Equal(got, want)) || times > 1 && !errors.Is(err, ErrTransient) {
				t.Errorf("broken %d times, %s: %d bytes, error %v", times, how, len(got), err)
			}
			broken = 0
		})
	}
}

// TestReadingEndsWithItsContext stops a read whose ranges do not come.
func TestReadingEndsWithItsContext(t *testing.T) {
	s, d, ref, _ := ranged(t)
	ctx, cancel := context.WithCancel(t.Context())
	d.reads = func(int64, io.Reader) io.Reader {
		return readerFunc(func([]byte) (int, error) { cancel(); return 0, ctx.Err() })
	}
	if _, err := s.Get(ctx, ref); !errors.Is(err, ErrTransient) || !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestLongReadsAreTold has a blob that takes a minute: the log says twice how far it is.
func TestLongReadsAreTold(t *testing.T) {
	s, d, ref, want := ranged(t)
	var log bytes.Buffer
	s.Configure(s.reading, slog.New(slog.NewTextHandler(&log, nil)))
	synctest.Test(t, func(t *testing.T) {
		var once sync.Once
		d.reads = func(offset int64, r io.Reader) io.Reader {
			if offset != testRange {
				return r
			}
			return readerFunc(func(p []byte) (int, error) {
				once.Do(func() { time.Sleep(2*tellEvery + time.Second) })
				return r.Read(p)
			})
		}
		if got, err := s.Get(t.Context(), ref); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes, error %v", len(got), err)
		}
	})
	if text := log.String(); strings.Count(text, "a blob is being read") != 2 || !strings.Contains(text, "bytes=1048576 of=3145745 for=30s") {
		t.Errorf("the log says\n%s", text)
	}
}

// TestFetchFromTheDisk: a file on the disk of the store is the blob itself, a wrong one is refused, and what was there stays.
func TestFetchFromTheDisk(t *testing.T) {
	dir := t.TempDir()
	s, err := OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	ref, err := s.Put(t.Context(), "weights", []byte("whole"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "fetched")
	for range 2 { // a second time over it
		if err := s.Fetch(t.Context(), ref, path); err != nil {
			t.Fatal(err)
		}
	}
	stored := filepath.Join(dir, "blobs", ref.URI)
	if !sameFile(t, stored, path) {
		t.Error("the blob was copied")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("before"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stored, []byte("whale"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Fetch(t.Context(), ref, path); !errors.Is(err, errWrongBlob) {
		t.Errorf("a wrong blob: error %v", err)
	}
	outside := ref
	outside.URI = "../whole"
	if err := os.WriteFile(filepath.Join(dir, "whole"), []byte("whole"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.Fetch(t.Context(), outside, path+"2"); err == nil {
		t.Error("a file outside of the store was fetched")
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "before" {
		t.Errorf("what was there is %q, %v", got, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 3 {
		t.Errorf("%v are left, %v", left, err)
	}
}

func sameFile(t *testing.T, a, b string) bool {
	t.Helper()
	x, err := os.Stat(a)
	y, err2 := os.Stat(b)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return os.SameFile(x, y)
}

// TestPutFile moves a file into a store on its disk and copies it elsewhere; then it is gone. What is there already is
// replaced: a torn blob is mended, an old one is as if written now.
func TestPutFile(t *testing.T) {
	data := random(2*testRange + 3)
	local, err := OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	remote, _, _, _ := ranged(t)
	for name, s := range map[string]*Blobs{"on the disk": local, "elsewhere": remote} {
		t.Run(name, func(t *testing.T) {
			for i := range 2 {
				path := filepath.Join(t.TempDir(), "file")
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
				written, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				ref, err := s.PutFile(t.Context(), "weights", path)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
					t.Errorf("the file is left: %v", err)
				}
				both(t, s, ref, func(how string, got []byte, err error) {
					if err != nil || !bytes.Equal(got, data) {
						t.Errorf("%s: %d bytes, error %v", how, len(got), err)
					}
				})
				if s.dir == "" {
					continue
				}
				stored := filepath.Join(s.dir, ref.URI)
				now, err := os.Stat(stored)
				if err != nil || !os.SameFile(written, now) || time.Since(now.ModTime()) > refreshAfter || now.Mode() != 0o644 {
					t.Errorf("the file was copied, or is old, or not for all to read: %v, %v", now, err)
				}
				if i == 0 {
					old := time.Now().Add(-time.Hour)
					if err := errors.Join(os.WriteFile(stored, []byte("torn"), 0o644), os.Chtimes(stored, old, old)); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
	if _, err := local.PutFile(t.Context(), "weights", filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: error %v", err)
	}
}

// TestPutFileOfAStoredBlob: a file that is the blob itself under a second name is gone, too, and the blob as if written now.
func TestPutFileOfAStoredBlob(t *testing.T) {
	s, err := OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ref, err := s.Put(t.Context(), "weights", []byte("weights"))
	if err != nil {
		t.Fatal(err)
	}
	stored, path := filepath.Join(s.dir, ref.URI), filepath.Join(s.dir, "second")
	old := time.Now().Add(-time.Hour)
	if err := errors.Join(os.Chtimes(stored, old, old), s.Fetch(t.Context(), ref, path)); err != nil {
		t.Fatal(err)
	}
	if !sameFile(t, stored, path) {
		t.Fatal("the blob was copied")
	}
	if again, err := s.PutFile(t.Context(), "weights", path); err != nil || again != ref {
		t.Fatalf("%v, %v", again, err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file is left: %v", err)
	}
	if young, err := s.intact(t.Context(), ref); err != nil || !young {
		t.Errorf("the blob is not there as if written now: %v", err)
	}
}

// TestTake takes blobs over from a store on the same disk, where they are not copied, and from one elsewhere, and back; a
// wrong one is refused. What one store loses the other still has.
func TestTake(t *testing.T) {
	dir := t.TempDir()
	one, err := OpenBlobs(filepath.Join(dir, "one"))
	two, err2 := OpenBlobs(filepath.Join(dir, "two"))
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	remote, d, ref, want := ranged(t)
	for _, from := range []struct {
		name     string
		from, to *Blobs
	}{{"from elsewhere", remote, one}, {"on the disk", one, two}, {"to elsewhere", two, remote}} {
		got, err := from.to.Take(t.Context(), from.from, "taken", ref)
		if err != nil {
			t.Fatal(err)
		}
		if data, err := from.to.Get(t.Context(), got); err != nil || !bytes.Equal(data, want) || got.SHA256 != ref.SHA256 {
			t.Errorf("%s: %d bytes, error %v", from.name, len(data), err)
		}
		ref = got
	}
	if !sameFile(t, filepath.Join(one.dir, ref.URI), filepath.Join(two.dir, ref.URI)) {
		t.Error("the blob was copied")
	}
	if err := os.Remove(filepath.Join(one.dir, ref.URI)); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Get(t.Context(), ref); err != nil {
		t.Errorf("the blob is gone with the other store's: %v", err)
	}
	d.blobs[ref.URI] = want[1:]
	if _, err := one.Take(t.Context(), remote, "taken", ref); !errors.Is(err, errWrongBlob) {
		t.Errorf("a wrong blob: error %v", err)
	}
	for _, s := range []*Blobs{one, two} {
		if left, err := os.ReadDir(s.dir); err != nil || len(left) != 1 {
			t.Errorf("%v are left, %v", left, err)
		}
	}
}

// TestPutFileKeepsWhatItCannotStore has a store that is full: the file is still there, and nothing else is.
func TestPutFileKeepsWhatItCannotStore(t *testing.T) {
	s, d, _, _ := ranged(t)
	d.fill(true)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("kept"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := s.PutFile(t.Context(), "weights", path); err == nil || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("error %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "kept" {
		t.Errorf("the file holds %q, %v", got, err)
	}
	if len(d.blobs) != 1 {
		t.Errorf("%d blobs are there", len(d.blobs))
	}
}

// TestPutFileRefusesAFileThatChanges copies a file that is no longer the one that was named.
func TestPutFileRefusesAFileThatChanges(t *testing.T) {
	s, d, ref, _ := ranged(t)
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	ref.URI = "weights/new"
	if err := s.copyIn(t.Context(), ref, path); err == nil || !strings.Contains(err.Error(), "changed while it was stored") {
		t.Fatalf("error %v", err)
	}
	if len(d.blobs) != 1 {
		t.Errorf("%d blobs are there", len(d.blobs))
	}
}

func TestBlobsConfig(t *testing.T) {
	for _, c := range []BlobsConfig{{0, 64}, {257, 64}, {8, 0}, {8, 1025}} {
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "blobs.") {
			t.Errorf("%v: error %v", c, err)
		}
	}
	if err := DefaultBlobsConfig().Validate(); err != nil {
		t.Error(err)
	}
}
