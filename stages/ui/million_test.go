package ui

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// TestMillion measures a run with a million rollouts, written by the sink's own writer: how long until they are there, how
// long filters take, and how much memory. PRL_UI_MILLION is a folder for the files, which are kept; PRL_UI_ROLLOUTS another
// number. The README has what it printed.
func TestMillion(t *testing.T) {
	dir := os.Getenv("PRL_UI_MILLION")
	if dir == "" {
		t.Skip("PRL_UI_MILLION names a folder with room for some gigabytes")
	}
	total := 1_000_000
	if n, err := strconv.Atoi(os.Getenv("PRL_UI_ROLLOUTS")); err == nil {
		total = n
	}
	p := newRun(t, false)
	p.dir = filepath.Join(dir, fmt.Sprint(total), "parquet")
	if _, err := os.Stat(p.dir); err != nil {
		begun := time.Now()
		many(t, p.dir, total)
		t.Logf("written in %v", time.Since(begun))
	}
	size, files := int64(0), 0
	err := filepath.WalkDir(p.dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			size, files = size+info.Size(), files+1
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files, %d MiB", files, size>>20)
	before := heap()
	begun := time.Now()
	p.serve(func(c *Config) { c.MaxRollouts = 2_000_000 })
	u := p.ui
	for deadline := begun.Add(10 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		var load Loading
		u.model.locked(func() { load = u.model.load })
		if load.Files > 0 && load.Loaded == load.Files {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%+v", load)
		}
	}
	t.Logf("all there after %v; the heap holds %d MiB more", time.Since(begun), (heap()-before)>>20)
	for _, query := range []string{
		"", "env=wordle&fate=packed", "reward=0.9..&sort=-reward", "error=any", "version=100..200&tokens=5..&sort=tokens", "task=3&sort=version", "fate=filtered&filter=zero_advantage", "group=77777",
		"text=answer+2+of+group+77777", "text=no+such+thing",
	} {
		var times []time.Duration
		body := ""
		for range 5 {
			begun := time.Now()
			body = p.get("/api/rollouts?"+query, http.StatusOK, nil)
			times = append(times, time.Since(begun))
		}
		slices.Sort(times)
		_, tail, _ := strings.Cut(body, `"matches"`)
		t.Logf("%-42s median %6.1f ms, worst %6.1f ms   %s", query, ms(times[2]), ms(times[4]), clipText(tail, 60))
	}
	id := p.rows("sort=time&limit=1&group=" + strconv.Itoa(total/uitest.Size/2))[0].ID
	for _, path := range []string{"/api/run?points=600", "/api/rollouts/" + id, "/api/rollouts/" + id + "/tokens?node=1", fmt.Sprintf("/api/steps/%d", total/perStep/2)} {
		var times []time.Duration
		for range 5 {
			begun := time.Now()
			p.get(path, http.StatusOK, nil)
			times = append(times, time.Since(begun))
		}
		slices.Sort(times)
		t.Logf("%-42s median %6.1f ms, worst %6.1f ms", path, ms(times[2]), ms(times[4]))
	}
	t.Logf("the heap holds %d MiB more; the process has %s", (heap()-before)>>20, resident())
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func resident() string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(status)) {
		if rss, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(rss) + " resident"
		}
	}
	return "unknown"
}

// many writes steps until there are n rollouts, a file of every topic each 200 steps.
func many(t *testing.T, dir string, n int) {
	t.Helper()
	if err := sink.WriteSchemas(dir); err != nil {
		t.Fatal(err)
	}
	chains := map[string]*sink.Chain{}
	for step := int64(1); int(step-1)*perStep < n; step++ {
		for _, r := range uitest.Step(step) {
			topic, _ := pipeline.TopicOf(r.Topic)
			partition := int32(0)
			if r.Topic == pipeline.TopicTraces {
				partition = topic.Partition(r.Value, uitest.Partitions)
			}
			key := fmt.Sprint(r.Topic, partition)
			if chains[key] == nil {
				c, err := sink.OpenChain(dir, r.Topic, [16]byte{1}, partition)
				if err != nil {
					t.Fatal(err)
				}
				chains[key] = c
			}
			value, err := schemas.Encode(r.Value)
			if err != nil {
				t.Fatal(err)
			}
			c := chains[key]
			if err := c.Append(sink.Row{Offset: c.Next(), Time: at.Add(time.Duration(step) * time.Second), Key: []byte(topic.Key(r.Value)), Value: value}, at); err != nil {
				t.Fatal(err)
			}
		}
		if step%200 == 0 || int(step)*perStep >= n {
			for _, c := range chains {
				if _, err := c.Flush(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
