package stages

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestBackendsWithTheRun: what a server that holds one version cannot do is refused at the start, with what to change.
func TestBackendsWithTheRun(t *testing.T) {
	vllm := []string{"inference.backend=vllm", `inference.urls=["http://localhost:1"]`}
	for _, c := range []struct {
		name string
		sets []string
		want string // in the error; empty for none
	}{
		{"a run", vllm, ""},
		{"evals", append(vllm, `evals.catch.env="catch"`), "inference.remote.eval_urls"},
		{"evals on servers set aside", append(vllm, `evals.catch.env="catch"`, `inference.remote.eval_urls=["http://localhost:2"]`), ""},
		{"ordered mode", append(vllm, "run.max_async_level=0"), "ordered mode"},
		{"its own teacher", append(vllm, "envs.catch.teacher=self"), "envs.catch.teacher"},
		{"a frozen folder", append(vllm, "frozen.old.folder=/nowhere"), "frozen.old.url"},
		{"a fixed model", []string{"inference.backend=openai", `inference.urls=["http://localhost:1"]`, "inference.model=large", "inference.remote.tokenizer=/models/large"}, "[frozen.<name>]"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := pipeline.LoadConfig("", nil, append([]string{"envs.catch.group_size=4"}, c.sets...), DefaultConfig())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %q", err, c.want)
			}
		})
	}
}

// TestRunOnServers is a whole run whose policy is served by servers of another make, and whose evals are played on one set
// aside: every version flows to them, and every sampled token has the log-probability that its version gives it.
func TestRunOnServers(t *testing.T) {
	const alphabet = "0123456789lsr"
	tokenizer, err := lm.NewTokenizer(alphabet)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	m := cfg.Model
	base, err := lm.New(lm.NewConfig(tokenizer.VocabSize(), m.HiddenSize, m.Layers, m.Heads, m.KVHeads, m.FFN, 64), 99)
	if err != nil {
		t.Fatal(err)
	}
	first, second, aside := standin.NewVLLM(t, base), standin.NewVLLM(t, base), standin.NewVLLM(t, base)
	if err := pipeline.LoadConfig("", nil, []string{
		"dir=" + t.TempDir(), "inference.listen=localhost:0", "run.seed=1", "run.max_steps=6", "run.batch_size=32", "run.seq_len=64",
		"run.max_async_level=1", "run.max_off_policy_steps=2", "envs.catch.group_size=8", "envs.catch.max_tokens=2",
		"envs.catch.max_rollout_tokens=64", "model.max_position=64", "model.alphabet=" + alphabet, "trainer.lr=0.01",
		"evals.catch.env=catch", "evals.catch.examples=8", "evals.catch.interval=2",
		"inference.backend=vllm", fmt.Sprintf("inference.urls=[%q,%q]", first.URL, second.URL), fmt.Sprintf("inference.remote.eval_urls=[%q]", aside.URL),
		"inference.versions=8",
	}, cfg); err != nil {
		t.Fatal(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	app, err := NewApp(cfg, cluster.ListenAddrs(), "all", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := app.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := app.SetUp(ctx); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := app.RunAll(ctx, &out); err != nil {
		t.Fatal(err)
	}
	report, err := app.Audit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
	models := map[int64]*lm.Learner{}
	seen := map[int64]int{}
	for _, trace := range records[*schemas.Trace](t, app, pipeline.TopicTraces) {
		sampledBy(t, app, models, trace, seen)
	}
	if len(seen) < 3 {
		t.Errorf("tokens by version: %v", seen)
	}
	measured := map[int64]int{}
	for _, trace := range records[*schemas.Trace](t, app, pipeline.TopicEvalTraces) {
		sampledBy(t, app, models, trace, measured)
	}
	if measured[0] == 0 || measured[6] == 0 {
		t.Errorf("tokens of evals by version: %v", measured)
	}
	if a, b, c := first.Counts(), second.Counts(), aside.Counts(); a.Loads < 3 || b.Loads < 3 || c.Loads < 2 || a.Tokens+b.Tokens == 0 || c.Tokens == 0 {
		t.Errorf("the servers did %+v, %+v and %+v", a, b, c)
	}
	t.Logf("sampled tokens by version: %v, of evals: %v", seen, measured)
}

// sampledBy holds the sampled tokens of a trace to the models of the versions that they are said to be of, and counts them.
func sampledBy(t *testing.T, app *App, models map[int64]*lm.Learner, trace *schemas.Trace, seen map[int64]int) {
	t.Helper()
	var all []int32
	for i := range trace.Nodes { // catch is one branch
		n := &trace.Nodes[i]
		ids, mask, logprobs := n.TokenIDs.Values(), n.Mask, n.Logprobs.Values()
		for k := range ids {
			all = append(all, ids[k])
			if mask[k] == 0 {
				continue
			}
			version := int64(-1)
			for _, v := range n.Versions {
				if v.Offset <= k {
					version = v.Version
				}
			}
			seen[version]++
			if want := logprobOf(t, app, models, version, all, n.Temperature); math.Abs(want-float64(logprobs[k])) > 1e-4 {
				t.Fatalf("group %d: a token of version %d has the log-probability %g, not %g", trace.GroupID, version, logprobs[k], want)
			}
		}
	}
}

// logprobOf is the log-probability of the last token under a version.
func logprobOf(t *testing.T, app *App, models map[int64]*lm.Learner, version int64, tokens []int32, temperature float64) float64 {
	t.Helper()
	if models[version] == nil {
		dir, err := app.export(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		model, _, err := lm.LoadFolder(dir)
		if err != nil {
			t.Fatal(err)
		}
		models[version] = lm.NewLearner(model)
	}
	if temperature == 0 {
		temperature = 1 // greedy: of the logits as they are
	}
	b := &lm.Batch{Tokens: tokens, Mask: make([]byte, len(tokens)), SeqLens: []int32{int32(len(tokens))}}
	b.Mask[len(tokens)-1] = 1
	for range tokens {
		b.Temperatures = append(b.Temperatures, float32(temperature))
	}
	logprobs, _, err := models[version].Score(b)
	if err != nil {
		t.Fatal(err)
	}
	return float64(logprobs[len(tokens)-1])
}
