package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
)

// TestBlobsHas says what is there without reading it; a store that fails is no store without the blob.
func TestBlobsHas(t *testing.T) {
	dir := t.TempDir()
	blobs, err := OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { blobs.Close() }) //nolint:errcheck // a folder that goes away
	ref, err := blobs.Put(t.Context(), "weights", []byte("here"))
	if err != nil {
		t.Fatal(err)
	}
	for want, ref := range map[bool]schemas.BlobRef{true: ref, false: {URI: "weights/gone"}} {
		if has, err := blobs.Has(t.Context(), ref); has != want || err != nil {
			t.Errorf("%s: %v, error %v", ref.URI, has, err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := blobs.Has(t.Context(), schemas.BlobRef{URI: "file/below"}); !errors.Is(err, ErrTransient) {
		t.Errorf("a store that fails: error %v", err)
	}
}

// TestBlobsPutWritesAnew what is there otherwise, and what is so old that clean-up takes it for an orphan; what is there,
// whole and young, it leaves.
func TestBlobsPutWritesAnew(t *testing.T) {
	blobs, err := OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ref, err := blobs.Put(t.Context(), "weights", []byte("whole"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(blobs.dir, ref.URI)
	for _, c := range []struct {
		what, data string
		age        time.Duration
		anew       bool
	}{{"as it should be", "whole", time.Minute, false}, {"old", "whole", time.Hour, true}, {"wrong", "whale", time.Minute, true}, {"longer", "wholesome", time.Minute, true}} {
		then := time.Now().Add(-c.age)
		if err := errors.Join(os.WriteFile(path, []byte(c.data), 0o644), os.Chtimes(path, then, then)); err != nil {
			t.Fatal(err)
		}
		if _, err := blobs.Put(t.Context(), "weights", []byte("whole")); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if anew := info.ModTime().After(then.Add(time.Second)); anew != c.anew {
			t.Errorf("a blob that is %s: written anew %v", c.what, anew)
		}
		if got, err := blobs.Get(t.Context(), ref); err != nil || string(got) != "whole" {
			t.Errorf("a blob that is %s: then it is %q, %v", c.what, got, err)
		}
	}
}
