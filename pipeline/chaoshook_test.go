package pipeline

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestWriteFault: disks fail as the file says, and are in order without it.
func TestWriteFault(t *testing.T) {
	if err := WriteFault(); err != nil {
		t.Errorf("without PRL_DISK_FAULTS: %v", err)
	}
	path := filepath.Join(t.TempDir(), "faults")
	for _, test := range []struct {
		text string
		ok   func(error) bool
	}{
		{"", func(err error) bool { return err == nil }},
		{"1ms 0", func(err error) bool { return err == nil }},
		{"1ms 1", func(err error) bool { return errors.Is(err, syscall.ENOSPC) }},
		{"soon 1", func(err error) bool { return err != nil && !errors.Is(err, syscall.ENOSPC) }},
	} {
		if test.text != "" {
			if err := os.WriteFile(path, []byte(test.text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := writeFault(path); !test.ok(err) {
			t.Errorf("%q: error %v", test.text, err)
		}
	}
}
