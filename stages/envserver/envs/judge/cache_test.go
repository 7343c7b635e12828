package judge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCacheKeepsTheMostRecent(t *testing.T) {
	c, err := newCache(3, "")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		c.put(fmt.Sprint(i), fmt.Sprint("said ", i))
	}
	if _, ok := c.get("0"); !ok {
		t.Error("the first is gone")
	}
	c.put("3", "said 3")
	for key, want := range map[string]bool{"0": true, "1": false, "2": true, "3": true} {
		if reply, ok := c.get(key); ok != want || ok && reply != "said "+key {
			t.Errorf("%s: %q %v", key, reply, ok)
		}
	}
	none, err := newCache(0, "")
	if err != nil {
		t.Fatal(err)
	}
	none.put("0", "x")
	if _, ok := none.get("0"); ok {
		t.Error("a cache of nothing has something")
	}
}

func TestCacheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "cache.jsonl")
	a, err := newCache(4, file)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		a.put(fmt.Sprint(i), strings.Repeat("x", i))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), "\n"); n > 8 {
		t.Errorf("the file has %d lines, want at most twice 4", n)
	}
	if err := os.WriteFile(file, append(text, []byte("{half a li")...), 0o600); err != nil { // a process that was killed
		t.Fatal(err)
	}
	b, err := newCache(4, file)
	if err != nil {
		t.Fatal(err)
	}
	for i := 26; i < 30; i++ {
		if reply, ok := b.get(fmt.Sprint(i)); !ok || len(reply) != i {
			t.Errorf("%d: %q %v", i, reply, ok)
		}
	}
	left, err := filepath.Glob(file + ".*")
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	if _, err := newCache(4, t.TempDir()); err == nil {
		t.Error("a folder is a cache file")
	}
	long, err := newCache(4, file+"2")
	if err != nil {
		t.Fatal(err)
	}
	long.put("k", strings.Repeat("x", longestEntry))
	if _, err := os.Stat(file + "2"); err == nil {
		t.Error("an entry that cannot be read again was written")
	}
}
