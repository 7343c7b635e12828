package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

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
