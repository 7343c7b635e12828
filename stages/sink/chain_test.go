package sink

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func open(t testing.TB, dir string) *Chain {
	t.Helper()
	c, err := OpenChain(dir, pipeline.TopicMetrics, topicID, 0)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func point(t testing.TB, offset int64) Row {
	t.Helper()
	return row(t, offset, &schemas.MetricPoint{Name: "loss", Value: float64(offset)})
}

func add(t testing.TB, c *Chain, offsets ...int64) {
	t.Helper()
	for _, o := range offsets {
		if err := c.Append(point(t, o), time.Now()); err != nil {
			t.Fatal(err)
		}
	}
}

func flush(t testing.TB, c *Chain) {
	t.Helper()
	if _, err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

func offsets(t testing.TB, dir, topic string) []int64 {
	t.Helper()
	var out []int64
	for _, r := range read(t, dir, topic) {
		out = append(out, r["kafka_offset"].(int64))
	}
	return out
}

func names(t testing.TB, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFileName(t *testing.T) {
	n := fileName{"tasks.my-env", [16]byte{1, 0xEF}, 12, 345}
	if s := n.String(); s != "tasks.my-env-01ef0000000000000000000000000000-12-00000000000000000345.parquet" {
		t.Errorf("named %s", s)
	}
	if got, ok := parseName(n.String()); !ok || got != n {
		t.Errorf("read %+v (%v), want %+v", got, ok, n)
	}
	for _, bad := range []string{"", "x.parquet", "schema-0123456789abcdef.parquet", ".metrics-" + n.String() + ".7.tmp", n.String()[:70],
		strings.Replace(n.String(), "-12-", "-x-", 1), strings.Replace(n.String(), "ef", "zz", 1)} {
		if got, ok := parseName(bad); ok {
			t.Errorf("%q was read as %+v", bad, got)
		}
	}
}

// Each file starts where the one before it ended, gaps included, and a new chain goes on behind the last one.
func TestInvariant_OneChain(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	add(t, c, 0, 1)
	if err := c.Skip(3); err != nil { // a marker at 2
		t.Fatal(err)
	}
	flush(t, c)
	flush(t, c)  // nothing to write
	add(t, c, 7) // 3 to 6 were aborted
	flush(t, c)
	c = open(t, dir)
	if c.Next() != 8 {
		t.Fatalf("goes on at %d, want 8", c.Next())
	}
	add(t, c, 8)
	flush(t, c)
	if got := offsets(t, dir, "metrics"); !slices.Equal(got, []int64{0, 1, 7, 8}) {
		t.Errorf("offsets %v", got)
	}
	want := []string{"0", "3", "8"}
	for i, name := range names(t, filepath.Join(dir, "metrics")) {
		n, ok := parseName(name)
		if !ok || fmt.Sprint(n.start) != want[i] {
			t.Errorf("file %d is %s, want one that starts at %s", i, name, want[i])
		}
	}
}

// A marker alone makes no file: the next record's file covers it.
func TestChain_MarkersAloneMakeNoFile(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	if err := c.Skip(5); err != nil {
		t.Fatal(err)
	}
	flush(t, c)
	if got := names(t, filepath.Join(dir, "metrics")); len(got) != 0 {
		t.Fatalf("wrote %v", got)
	}
	if c := open(t, dir); c.Next() != 0 {
		t.Errorf("goes on at %d, want 0", c.Next())
	}
}

func TestChain_RefusesToGoBack(t *testing.T) {
	c := open(t, t.TempDir())
	add(t, c, 0, 1)
	if err := c.Append(point(t, 1), time.Now()); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "offset 1 came again") {
		t.Errorf("got %v", err)
	}
}

// Two sinks race for every file with different cuts; each record is written exactly once all the same.
func TestInvariant_TwoSinksOneChain(t *testing.T) {
	dir := t.TempDir()
	const n = 200
	var wg sync.WaitGroup
	for i := range 2 {
		c := open(t, dir)
		wg.Go(func() {
			for c.Next() < n {
				for range 3 + i*4 {
					if c.Next() < n {
						if err := c.Append(point(t, c.Next()), time.Now()); err != nil {
							t.Error(err)
							return
						}
					}
				}
				_, err := c.Flush()
				if errors.Is(err, ErrTaken) {
					err = c.Reopen()
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	got := offsets(t, dir, "metrics")
	for i := range int64(n) {
		if int64(len(got)) <= i || got[i] != i {
			t.Fatalf("offsets %v", got)
		}
	}
	for _, name := range names(t, filepath.Join(dir, "metrics")) {
		if strings.HasSuffix(name, tempSuffix) {
			t.Errorf("%s is left", name)
		}
	}
}

func TestChain_TakenThenGoesOnBehind(t *testing.T) {
	dir := t.TempDir()
	a, b := open(t, dir), open(t, dir)
	add(t, a, 0, 1, 2)
	add(t, b, 0, 1)
	flush(t, a)
	before := contents(t, filepath.Join(dir, "metrics"))
	if _, err := b.Flush(); !errors.Is(err, ErrTaken) {
		t.Fatalf("a second file for position 0: %v", err)
	}
	if err := b.Reopen(); err != nil || b.Next() != 3 {
		t.Fatalf("goes on at %d (%v), want 3", b.Next(), err)
	}
	add(t, b, 3)
	flush(t, b)
	for name, was := range before {
		if now := contents(t, filepath.Join(dir, "metrics"))[name]; now != was {
			t.Errorf("finished file %s was touched", name)
		}
	}
	if got := offsets(t, dir, "metrics"); !slices.Equal(got, []int64{0, 1, 2, 3}) {
		t.Errorf("offsets %v", got)
	}
}

func contents(t *testing.T, dir string) map[string]string {
	out := map[string]string{}
	for _, name := range names(t, dir) {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(b)
	}
	return out
}

// The offsets of a topic that was deleted and made again mean other records: an error, not a mix.
func TestChain_RecreatedTopic(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	add(t, c, 0)
	flush(t, c)
	_, err := OpenChain(dir, pipeline.TopicMetrics, [16]byte{9}, 3)
	if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "metrics was made again") {
		t.Errorf("got %v", err)
	}
	if _, err := OpenChain(dir, pipeline.TopicEvals, [16]byte{9}, 0); err != nil {
		t.Errorf("another topic: %v", err)
	}
}

func TestChain_ForeignFile(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir)
	add(t, c, 0)
	flush(t, c)
	name := names(t, filepath.Join(dir, "metrics"))[0]
	later := strings.Replace(name, fmt.Sprintf("%020d", 0), fmt.Sprintf("%020d", 1), 1)
	if err := os.Rename(filepath.Join(dir, "metrics", name), filepath.Join(dir, "metrics", later)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenChain(dir, "metrics", topicID, 0); !errors.Is(err, pipeline.ErrFatal) {
		t.Errorf("a file that ends where it starts: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "metrics", later), []byte("no Parquet"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenChain(dir, "metrics", topicID, 0); err == nil || !strings.Contains(err.Error(), later) {
		t.Errorf("a file that is no Parquet: %v", err)
	}
}

// A SIGKILL before the link leaves no file, one after it leaves a whole one; either way the next sink goes on rightly.
func TestInvariant_KillWhilePublishing(t *testing.T) {
	if dir := os.Getenv("SINK_TEST_DIR"); dir != "" { // the process that is killed
		c := open(t, dir)
		add(t, c, 0, 1)
		flush(t, c)
		t.Fatal("was not killed")
	}
	for place, next := range map[string]int64{"sink-written": 0, "sink-linked": 2} {
		dir := t.TempDir()
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "SINK_TEST_DIR="+dir, "PRL_CRASH_AT="+place+":1")
		out, err := cmd.CombinedOutput()
		if err == nil || err.Error() != "signal: killed" {
			t.Fatalf("%s: not killed: %v\n%s", place, err, out)
		}
		c := open(t, dir)
		if c.Next() != next {
			t.Fatalf("%s: goes on at %d, want %d", place, c.Next(), next)
		}
		for o := c.Next(); o < 4; o++ {
			add(t, c, o)
		}
		flush(t, c)
		if got := offsets(t, dir, "metrics"); !slices.Equal(got, []int64{0, 1, 2, 3}) {
			t.Errorf("%s: offsets %v", place, got)
		}
		left := slices.DeleteFunc(names(t, filepath.Join(dir, "metrics")), func(n string) bool { return !strings.HasSuffix(n, tempSuffix) })
		if len(left) != 1 {
			t.Fatalf("%s: leftovers %v", place, left)
		}
		if err := sweep(filepath.Join(dir, "metrics"), time.Now()); err != nil || !slices.Contains(names(t, filepath.Join(dir, "metrics")), left[0]) {
			t.Errorf("%s: a young file was swept, which another sink may be writing (%v)", place, err)
		}
		if err := sweep(filepath.Join(dir, "metrics"), time.Now().Add(2*tempLife)); err != nil || slices.Contains(names(t, filepath.Join(dir, "metrics")), left[0]) {
			t.Errorf("%s: the leftover was not swept (%v)", place, err)
		}
		if got := offsets(t, dir, "metrics"); len(got) != 4 {
			t.Errorf("%s: the sweep took records: %v", place, got)
		}
	}
}

func TestPublish_FailedWriteLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	err := publish(dir, "x.parquet", func(io.Writer) error { return errors.New("disk full") })
	if err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got %v", err)
	}
	if got := names(t, dir); len(got) != 0 {
		t.Errorf("left %v", got)
	}
}

func TestWriteSchemas(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		if err := WriteSchemas(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, spec := range pipeline.Topics {
		table, _ := tableOf(spec.Name)
		if got := names(t, filepath.Join(dir, table.name)); len(got) != 1 || !strings.HasPrefix(got[0], "schema-") {
			t.Errorf("%s holds %v", table.name, got)
		}
	}
}
