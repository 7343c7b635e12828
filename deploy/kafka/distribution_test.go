package kafka

import (
	"context"
	"path/filepath"
	"testing"
)

// TestInvariant_OneInstalls holds the lock of the cache: nobody else gets it until it is let go.
func TestInvariant_OneInstalls(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache", "kafka.lock")
	unlock, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := lock(done, path); err == nil {
		t.Fatal("locked twice")
	}
	unlock()
	again, err := lock(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	again()
}

func TestJavaVersion(t *testing.T) {
	for said, ok := range map[string]bool{
		`openjdk version "17.0.15" 2025-04-15`: true,
		`openjdk version "25" 2025-09-16`:      true,
		`java version "1.8.0_402"`:             false,
		`openjdk version "11.0.2" 2019-01-15`:  false,
		"The operation couldn’t be completed.": false,
	} {
		if err := checkJava([]byte(said)); (err == nil) != ok {
			t.Errorf("%s: %v", said, err)
		}
	}
}
