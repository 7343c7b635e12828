package judge

import (
	"bufio"
	"container/list"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
)

// longestEntry is a line of a cache file, in bytes.
const longestEntry = 1 << 17

// cache keeps what the judge has said, by what it was asked: the most recently used entries, and optionally a file of them. It is
// safe for concurrent use. The file is an optimisation: what cannot be read of it is asked again, and when it cannot be written that is
// logged once. Several processes may append to one file.
type cache struct {
	mu      sync.Mutex
	most    int
	entries map[string]*list.Element
	recent  *list.List // of entry, the most recent first
	file    string     // empty for none
	lines   int        // of the file
	broken  bool       // it was logged
}

// entry is a line of the file.
type entry struct {
	Key   string `json:"key"`
	Reply string `json:"reply"`
}

// newCache makes a cache of at most so many entries and reads the last ones of the file, which need not be there yet.
func newCache(most int, file string) (*cache, error) {
	c := &cache{most: most, entries: map[string]*list.Element{}, recent: list.New(), file: file}
	if file == "" {
		return c, nil
	}
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cache_file: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2*longestEntry)
	for lines.Scan() {
		c.lines++
		var e entry
		if json.Unmarshal(lines.Bytes(), &e) == nil && e.Key != "" {
			c.keep(e)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("cache_file: read %s: %w", file, err)
	}
	return c, nil
}

func (c *cache) get(key string) (reply string, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.entries[key]
	if !ok {
		return "", false
	}
	c.recent.MoveToFront(e)
	return e.Value.(entry).Reply, true
}

func (c *cache) put(key, reply string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := entry{key, reply}
	c.keep(e)
	if c.file == "" || c.most == 0 {
		return
	}
	if err := c.write(e); err != nil && !c.broken {
		c.broken = true
		slog.Warn("what the judge says is not kept in the file", "env", "judge", "error", err)
	}
}

// keep puts an entry to the front and drops the oldest.
func (c *cache) keep(e entry) {
	if old, ok := c.entries[e.Key]; ok {
		c.recent.Remove(old)
	}
	c.entries[e.Key] = c.recent.PushFront(e)
	for c.recent.Len() > c.most {
		oldest := c.recent.Back()
		delete(c.entries, oldest.Value.(entry).Key)
		c.recent.Remove(oldest)
	}
}

// write appends to the file, or makes it anew of what is kept when it has twice as many lines.
func (c *cache) write(e entry) error {
	if c.lines >= 2*c.most {
		return c.rewrite()
	}
	line, err := json.Marshal(e)
	if err != nil || len(line) > longestEntry {
		return err
	}
	f, err := os.OpenFile(c.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	c.lines++
	return errors.Join(err, f.Close())
}

func (c *cache) rewrite() error {
	f, err := os.CreateTemp(filepath.Dir(c.file), filepath.Base(c.file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	w := bufio.NewWriter(f)
	lines := 0
	for e := c.recent.Back(); e != nil; e = e.Prev() {
		line, err := json.Marshal(e.Value)
		if err != nil || len(line) > longestEntry {
			continue
		}
		_, _ = w.Write(append(line, '\n')) // Flush has the error
		lines++
	}
	if err := errors.Join(w.Flush(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), c.file); err != nil {
		return err
	}
	c.lines = lines
	return nil
}
