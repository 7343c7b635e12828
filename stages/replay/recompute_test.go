package replay

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// reproduced checks that a comparison found nothing but the recorded batches.
func reproduced(t *testing.T, c *Comparison, least int64) {
	t.Helper()
	if c.First != "" || c.Different > 0 || c.Identical != c.Recorded.MicroBatches || c.Recomputed.MicroBatches != c.Identical || c.Identical < least {
		t.Errorf("not the recorded batches:\n%v", c)
	}
	if !maps.Equal(c.Recorded.Groups, c.Recomputed.Groups) || c.Stopped != nil {
		t.Errorf("not the recorded groups:\n%v", c)
	}
}

// The same configuration reproduces the batches of a run that an earlier version recorded, byte for byte.
func TestInvariant_RecordedRun(t *testing.T) {
	src, run := fixture(t)
	reproduced(t, recompute(t, src, same(run)), 3)
	cfg := same(run)
	cfg.Topic = pipeline.TopicSamples
	reproduced(t, recompute(t, src, cfg), 3)
}

// sameGroups checks that the groups that are packed are the recorded ones, byte for byte.
func sameGroups(t *testing.T, src Source) func(context.Context, []pipeline.Emission) error {
	t.Helper()
	recorded := map[int64][]byte{}
	for r, err := range src.Read(t.Context(), pipeline.TopicSamples, 0) {
		if err != nil {
			t.Fatal(err)
		}
		v, err := r.Decode(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b, err := schemas.Encode(v)
		if err != nil {
			t.Fatal(err)
		}
		recorded[v.(*schemas.SampleGroup).GroupID] = b
	}
	return func(_ context.Context, made []pipeline.Emission) error {
		for _, e := range made {
			g, ok := e.Value.(*schemas.SampleGroup)
			if !ok {
				continue
			}
			if b, err := schemas.Encode(g); err != nil || !bytes.Equal(b, recorded[g.GroupID]) {
				t.Errorf("group %d is another one than it was (%v)", g.GroupID, err)
			}
		}
		return nil
	}
}

// asynchronous is a run with as many steps as its traces give.
func asynchronous() pipeline.RunConfig {
	run := pipeline.DefaultRunConfig()
	run.Name, run.MaxSteps, run.TracePartitions, run.BatchSize, run.Ranks, run.SeqLen, run.MaxOffPolicySteps = "a", 1000, 4, 24, 2, 64, 4
	return run
}

func broker(t *testing.T) []string {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster.ListenAddrs()
}

// ends is where every topic of the run ends.
func ends(t *testing.T, rt *pipeline.Runtime) map[string]kadm.ListedOffset {
	t.Helper()
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListEndOffsets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]kadm.ListedOffset{}
	listed.Each(func(o kadm.ListedOffset) { all[o.Topic+"/"+string(rune('0'+o.Partition))] = o })
	return all
}

func fromTopics(t *testing.T, rt *pipeline.Runtime) Source {
	t.Helper()
	src, err := FromTopics(t.Context(), rt, topicsRead...)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// The same configuration reproduces the batches of an asynchronous run, whose order two scorers of four partitions have
// made, byte for byte: from its traces, from its groups, and from the middle on. The run itself is left as it is.
func TestInvariant_AsyncRun(t *testing.T) {
	run := asynchronous()
	w, stop := newWorld(t, broker(t), run)
	w.playAsync(t, 200)
	stop()
	before := ends(t, w.rt)
	src := fromTopics(t, w.rt)
	whole := same(run)
	whole.Write = sameGroups(t, src)
	c := recompute(t, src, whole)
	reproduced(t, c, 20)
	for _, fate := range []string{schemas.FatePacked, schemas.FateStale, schemas.FateErrored, "filtered by zero_advantage"} {
		if c.Recorded.Groups[fate] == 0 {
			t.Errorf("no group is %s: the run shows too little", fate)
		}
	}
	if c.Refused != 1 {
		t.Errorf("%d traces were refused, one is garbage", c.Refused)
	}
	cfg := same(run)
	cfg.Topic = pipeline.TopicSamples
	reproduced(t, recompute(t, src, cfg), 20)
	cfg = same(run)
	cfg.Select.FromVersion, cfg.Select.ToVersion = 5, 8
	part := recompute(t, src, cfg)
	reproduced(t, part, 3)
	if part.Recomputed.Steps != 3 {
		t.Errorf("%d steps make the versions 6 to 8", part.Recomputed.Steps)
	}
	one := run
	one.TracePartitions = 1 // the cores' number is a setting as any other
	reproduced(t, recompute(t, src, other(run, one, settings())), 20)
	if after := ends(t, w.rt); !maps.Equal(before, after) {
		t.Errorf("the run has changed: %v, before %v", after, before)
	}
}

// The Parquet files of a run give the same as its topics, and are left as they are.
func TestInvariant_ParquetRun(t *testing.T) {
	run := asynchronous()
	w, stop := newWorld(t, broker(t), run)
	w.playAsync(t, 60)
	stop()
	cfg := sink.DefaultConfig()
	cfg.Dir, cfg.MaxRows = t.TempDir(), 50 // several files
	s, err := sink.New(w.rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // it writes everything before it stops
	if err := s.Run(ctx); err != nil {
		t.Fatal(err)
	}
	before := files(t, cfg.Dir)
	src, err := FromParquet(w.rt, cfg.Dir, topicsRead...)
	if err != nil {
		t.Fatal(err)
	}
	c := recompute(t, src, same(run))
	reproduced(t, c, 5)
	if want := recompute(t, fromTopics(t, w.rt), same(run)); c.String() != want.String() {
		t.Errorf("from the files:\n%v\nfrom the topics:\n%v", c, want)
	}
	if after := files(t, cfg.Dir); !maps.Equal(before, after) {
		t.Errorf("the files have changed: %v, before %v", after, before)
	}
}

// files are the SHA-256 of all files below a folder.
func files(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	sums := map[string][32]byte{}
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(dir, path))
		sums[path] = sha256.Sum256(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// The same for a run in ordered mode, where steps need several waves.
func TestInvariant_OrderedRun(t *testing.T) {
	run := asynchronous()
	run.MaxAsyncLevel, run.MaxOffPolicySteps, run.MaxSteps = 0, 0, 8
	w, stop := newWorld(t, broker(t), run)
	w.playOrdered(t)
	stop()
	src := fromTopics(t, w.rt)
	cfg := same(run)
	cfg.Write = sameGroups(t, src)
	reproduced(t, recompute(t, src, cfg), 16)
	cfg = same(run)
	cfg.Select.FromVersion, cfg.Select.ToVersion = 3, 6
	if c := recompute(t, src, cfg); c.Recomputed.Steps != 3 {
		t.Errorf("versions 4 to 6:\n%v", c)
	} else {
		reproduced(t, c, 6)
	}
	// Without the filter fewer groups make a step: they are divided into waves anew.
	c := recompute(t, src, other(run, run, monitored()))
	if c.Recomputed.Steps <= 6 || c.Recomputed.Groups["filtered by zero_advantage"] != 0 || c.Stopped != nil {
		t.Errorf("without the filter:\n%v", c)
	}
	if ages := c.Recomputed.OffPolicy; len(ages) != 1 || ages[0] == 0 {
		t.Errorf("off-policy steps %v in ordered mode", ages)
	}
	async := run
	async.MaxAsyncLevel = 1
	async.MaxOffPolicySteps = 1
	if _, err := Recompute(context.Background(), src, other(async, run, settings())); err == nil || !strings.Contains(err.Error(), "max_async_level") {
		t.Errorf("an asynchronous run in ordered mode: %v", err)
	}
}

// A lower bound on staleness takes the groups that were older, and nothing but those: what is packed later than it was
// keeps its age.
func TestMaxOffPolicySteps(t *testing.T) {
	run := asynchronous()
	w, stop := newWorld(t, broker(t), run)
	w.playAsync(t, 200)
	stop()
	src := fromTopics(t, w.rt)
	strict := run
	strict.MaxOffPolicySteps = 1
	c := recompute(t, src, other(run, strict, settings()))
	kept := map[int64]int64{}
	for age, n := range c.Recorded.OffPolicy {
		if age <= 1 {
			kept[age] = n
		}
	}
	lost := int64(0)
	for age, n := range c.Recomputed.OffPolicy {
		if age > 1 {
			t.Errorf("%d samples are %d steps old", n, age)
		}
		lost += kept[age] - n
	}
	// What is left at the end is less than a step, then and now.
	if open := c.Recomputed.Groups[Open] - c.Recorded.Groups[Open]; max(lost, -lost) > int64(run.BatchSize) {
		t.Errorf("of %v samples young enough %v were packed, %d groups more are open", kept, c.Recomputed.OffPolicy, open)
	}
	if c.Recomputed.Groups[schemas.FateStale] <= c.Recorded.Groups[schemas.FateStale] || c.Recomputed.Groups[schemas.FateErrored] != c.Recorded.Groups[schemas.FateErrored] {
		t.Errorf("groups:\n%v", c)
	}
	if c.First == "" || c.Recomputed.Steps >= c.Recorded.Steps {
		t.Errorf("nothing has changed:\n%v", c)
	}
}
