package stages

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/replay"
	"github.com/prl-project/prl/stages/trainer"
)

// TestReplay looks again at a run of the whole pipeline with its own settings. Recomputed, from its topics and from its
// files, the batches are those that were trained; the rewards are those that were given; trained from version 0 on what was
// recomputed, another run ends with the same weights; and the recorded tasks can be played again. With other settings the
// batches are not the same. The run that is read is left as it is.
func TestReplay(t *testing.T) {
	_, app := smallRun(t, nil)
	before := endsOf(t, app)
	w := replayed{app}
	t.Run("dry run", func(t *testing.T) {
		into := w.open(t, "dry")
		for _, mode := range []string{ReplayRecompute, ReplayRescore, ReplayTrain, ReplayRegenerate} {
			out := w.replay(t, Replay{Mode: mode, Into: into, DryRun: true, Eval: EvalByHand{Policy: "latest"}})
			if !strings.Contains(out, "would ") || !strings.Contains(out, "run dry") {
				t.Errorf("%s says\n%s", mode, out)
			}
		}
		if written, err := filepath.Glob(filepath.Join(into.Config.RunDir(), "*", "*", "*")); err != nil || len(written) > 0 {
			t.Errorf("it wrote %v (%v)", written, err)
		}
	})
	t.Run("recompute", func(t *testing.T) {
		into := w.open(t, "recomputed")
		for name, r := range map[string]Replay{"topics": {Into: into}, "parquet": {Parquet: true}, "new rewards": {NewRewards: true}} {
			r.Mode = ReplayRecompute
			if out := w.replay(t, r); !strings.Contains(out, "are the same, byte for byte.") || strings.Contains(out, "recorded with") {
				t.Errorf("%s:\n%s", name, out)
			}
		}
		if out := w.replay(t, Replay{Mode: ReplayRecompute, Into: w.open(t, "recomputed")}); !strings.Contains(out, "Run recomputed: 0 records written") {
			t.Errorf("done again:\n%s", out)
		}
		if files, err := filepath.Glob(filepath.Join(into.Config.Sink.Dir, "batches", "batches-*.parquet")); err != nil || len(files) == 0 {
			t.Errorf("no Parquet files of the new run: %v", err)
		}
		out := w.replay(t, Replay{Mode: ReplayRecompute}, "scorer.normalize_std=true", "run.seq_len=128")
		if !strings.Contains(out, "the first difference is at step 1") || !strings.Contains(out, "run.seq_len = 128, recorded with seq_len = 256") {
			t.Errorf("other settings:\n%s", out)
		}
	})
	t.Run("rescore", func(t *testing.T) {
		into := w.open(t, "rescored")
		out := w.replay(t, Replay{Mode: ReplayRescore, Into: into})
		if !strings.Contains(out, "\n0 of the traces have another reward") || !strings.Contains(out, "Run rescored: ") {
			t.Errorf("as recorded:\n%s", out)
		}
		if out := w.replay(t, Replay{Mode: ReplayRescore}, "envs.catch.options.rows=5"); !strings.Contains(out, "that would have gone another way") {
			t.Errorf("on another grid:\n%s", out)
		}
	})
	t.Run("train", func(t *testing.T) {
		out := w.replay(t, Replay{Mode: ReplayTrain, Into: w.open(t, "trained")})
		if !strings.Contains(out, "Run trained is trained to version 3") || !strings.Contains(out, "the same as that run's, byte for byte") {
			t.Errorf("as recorded:\n%s", out)
		}
		out = w.replay(t, Replay{Mode: ReplayTrain, Into: w.open(t, "trained-other")}, "scorer.normalize_std=true")
		if !strings.Contains(out, "other than that run's") {
			t.Errorf("other advantages:\n%s", out)
		}
	})
	t.Run("regenerate", func(t *testing.T) {
		out := w.replay(t, Replay{Mode: ReplayRegenerate, Into: w.open(t, "played"), Eval: EvalByHand{Policy: "2"}})
		if !strings.Contains(out, "distinct tasks of catch; recorded of them: reward ") || !strings.Contains(out, "policy version 2 on catch") || !strings.Contains(out, "avg@1") {
			t.Errorf("%s", out)
		}
	})
	t.Run("train from a checkpoint that was cleaned up", func(t *testing.T) {
		into := w.open(t, "trained-late")
		origin, err := trainer.Origin(t.Context(), app.Runtime, 0)
		if err != nil {
			t.Fatal(err)
		}
		for blob, err := range app.Runtime.Blobs.List(t.Context()) {
			if err == nil && blob.URI == origin.Checkpoint.URI {
				err = app.Runtime.Blobs.Delete(t.Context(), blob)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, dry := range []bool{true, false} {
			r := Replay{Mode: ReplayTrain, Topic: pipeline.TopicTraces, Select: replay.Everything(), Bar: io.Discard, Into: into, DryRun: dry}
			if err := w.open(t, app.Config.Run.Name).Replay(t.Context(), io.Discard, r); err == nil || !strings.Contains(err.Error(), "its checkpoint was cleaned up") {
				t.Errorf("dry run %v: %v", dry, err)
			}
		}
		if made := endsOf(t, into); len(made) > 0 {
			t.Errorf("it made %v", made)
		}
	})
	if after := endsOf(t, app); !maps.Equal(before, after) {
		t.Errorf("the run ends at %v, before at %v", after, before)
	}
}

// A replayed is a run that has ended and is looked at again.
type replayed struct{ app *App }

// open makes an app of the run, or of another one on the same brokers, with the run's settings and others over them.
func (w replayed) open(t *testing.T, run string, sets ...string) *App {
	t.Helper()
	cfg := DefaultConfig()
	recorded, err := w.app.Config.Recorded()
	if err != nil {
		t.Fatal(err)
	}
	cfg.Run = recorded
	sets = append([]string{"dir=" + w.app.Config.Dir, "run.name=" + run, "run.max_steps=3", "run.batch_size=32", "inference.listen=localhost:0"}, sets...)
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, sets, cfg); err != nil {
		t.Fatal(err)
	}
	a, err := NewApp(cfg, w.app.Runtime.Brokers, ReplayName, w.app.Runtime.Log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

func (w replayed) replay(t *testing.T, r Replay, sets ...string) string {
	t.Helper()
	r.Topic, r.Select, r.Bar = pipeline.TopicTraces, replay.Everything(), io.Discard
	var out bytes.Buffer
	if err := w.open(t, w.app.Config.Run.Name, sets...).Replay(t.Context(), &out, r); err != nil {
		t.Fatalf("%v, after\n%s", err, out.String())
	}
	return out.String()
}

// endsOf is where the topics of the app's run end.
func endsOf(t *testing.T, app *App) map[string]int64 {
	t.Helper()
	cl, err := app.Runtime.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListEndOffsets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ends := map[string]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if strings.HasPrefix(o.Topic, app.Runtime.TopicName("")) {
			ends[fmt.Sprintf("%s/%d", o.Topic, o.Partition)] = o.Offset
		}
	})
	return ends
}
