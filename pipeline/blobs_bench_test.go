package pipeline

import (
	"crypto/sha256"
	"os"
	"path/filepath"
	"testing"
)

// BenchmarkBlobs reads a blob of 128 MiB of a store on the disk, which the system has in memory: into memory, and as a file;
// beside it os.ReadFile, and the SHA-256 alone, which nothing that checks can beat.
func BenchmarkBlobs(b *testing.B) {
	s, err := OpenBlobs(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	data := random(128 << 20)
	ref, err := s.Put(b.Context(), "weights", data)
	if err != nil {
		b.Fatal(err)
	}
	path := filepath.Join(b.TempDir(), "fetched")
	for name, read := range map[string]func() error{
		"Get":      func() error { _, err := s.Get(b.Context(), ref); return err },
		"Fetch":    func() error { return s.Fetch(b.Context(), ref, path) },
		"ReadFile": func() error { _, err := os.ReadFile(filepath.Join(s.dir, ref.URI)); return err },
		"SHA256":   func() error { sha256.Sum256(data); return nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(ref.Bytes)
			for b.Loop() {
				if err := read(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
