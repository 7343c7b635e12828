package trainer

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// The files of a model are stored once and not looked at for every version, but now and then, and where they are others.
func TestCostOfModelFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		blobs, err := pipeline.OpenBlobs(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer blobs.Close() //nolint:errcheck // a folder
		tr := &Trainer{rt: &pipeline.Runtime{Blobs: blobs}}
		store := func(config, tokenizer string) *made {
			v := &made{PolicyVersion: &schemas.PolicyVersion{}, config: []byte(config), tokenizer: []byte(tokenizer)}
			if err := tr.storeFiles(t.Context(), v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		there := func(ref schemas.BlobRef) bool {
			_, err := os.Stat(filepath.Join(dir, ref.URI))
			return err == nil
		}
		remove := func(ref schemas.BlobRef) {
			if err := os.Remove(filepath.Join(dir, ref.URI)); err != nil {
				t.Fatal(err)
			}
		}
		first := store("{}", "tokens")
		remove(first.Tokenizer) // nobody does: it shows who looks
		if again := store("{}", "tokens"); again.Tokenizer != first.Tokenizer || again.Config != first.Config || there(first.Tokenizer) {
			t.Errorf("%+v was looked at again", again.Tokenizer)
		}
		if other := store("{}", "other tokens"); other.Tokenizer == first.Tokenizer || !there(other.Tokenizer) || !there(other.Config) {
			t.Errorf("%+v is named, not %+v", other.Tokenizer, first.Tokenizer)
		}
		if back := store("{}", "tokens"); !there(back.Tokenizer) {
			t.Error("a tokenizer was named that is not stored")
		}
		remove(first.Config)
		time.Sleep(filesAnew + time.Second)
		if store("{}", "tokens"); !there(first.Config) {
			t.Errorf("after %v nobody has looked", filesAnew)
		}
	})
}
