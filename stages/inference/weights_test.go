package inference

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// TestOnlyPublishedSafetensorsAreLoaded offers weights that are not the record's, and files of other kinds that are: the
// version is refused, and the one before serves on.
func TestOnlyPublishedSafetensorsAreLoaded(t *testing.T) {
	blobs := t.TempDir()
	rt := testRuntime(t, blobs)
	s, err := New(rt, testConfig(), nil)
	if err != nil {
		t.Fatal(err)
	}
	publish(t, s, store(t, rt, testPolicy(t, 0)))
	rewrite := func(v *schemas.PolicyVersion, data []byte) {
		if err := os.WriteFile(filepath.Join(blobs, filepath.FromSlash(v.Weights.URI)), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		what, want string
		spoil      func(p Policy, v *schemas.PolicyVersion)
	}{
		{"another hash", "is not the one its record names", func(p Policy, v *schemas.PolicyVersion) {
			p.Weights[len(p.Weights)-1] ^= 1
			rewrite(v, p.Weights)
		}},
		{"another length", "is not the one its record names", func(_ Policy, v *schemas.PolicyVersion) { v.Weights.Bytes++ }},
		{"cut short", "is not the one its record names", func(p Policy, v *schemas.PolicyVersion) { rewrite(v, p.Weights[:len(p.Weights)/2]) }},
		{"gone", "read blob", func(_ Policy, v *schemas.PolicyVersion) { v.Weights.URI += "0" }},
		{"a pickle", "safetensors", func(_ Policy, v *schemas.PolicyVersion) {
			ref, err := rt.Blobs.Put(t.Context(), "weights", []byte("\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x02id\x94\x85\x94R\x94."))
			if err != nil {
				t.Fatal(err)
			}
			v.Weights = ref
		}},
		{"another kind", "of kind \"pickle\"", func(_ Policy, v *schemas.PolicyVersion) { v.Kind = "pickle" }},
		{"a delta of what was not published", "a delta of weights with SHA-256 x", func(_ Policy, v *schemas.PolicyVersion) { v.Kind, v.BaseSHA256 = schemas.KindDelta, "x" }},
	} {
		p := testPolicy(t, int64(i)+1)
		v := store(t, rt, p)
		c.spoil(p, v)
		if err := s.load(t.Context(), v); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.what, err, c.want)
		}
		publish(t, s, v)
		s.policies.mu.Lock()
		if got := s.policies.serving(); got != 0 {
			t.Errorf("%s: version %d serves", c.what, got)
		}
		s.policies.mu.Unlock()
	}
}
