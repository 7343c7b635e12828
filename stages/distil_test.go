package stages

import (
	"path/filepath"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/trainer"
)

// teacherFolder is a policy of the ordered run's shape that knows what it wants: random weights, the head's larger.
func teacherFolder(t *testing.T) string {
	t.Helper()
	cfg := orderedWith(t)
	tokenizer, err := lm.NewTokenizer(cfg.Model.Alphabet)
	if err != nil {
		t.Fatal(err)
	}
	m := cfg.Model
	model, err := lm.New(lm.NewConfig(tokenizer.VocabSize(), m.HiddenSize, m.Layers, m.Heads, m.KVHeads, m.FFN, m.MaxPosition), 7)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range model.Params() {
		if p.Name == "model.norm.weight" {
			for i := range p.Data {
				p.Data[i] *= 8
			}
		}
	}
	dir := filepath.Join(t.TempDir(), "teacher")
	if err := lm.SaveFolder(dir, model, tokenizer); err != nil {
		t.Fatal(err)
	}
	return dir
}

// taught runs the ordered configuration with further settings to its end, and audits it.
func taught(t *testing.T, sets ...string) *App {
	t.Helper()
	_, app := smallRun(t, nil, append([]string{"run.max_steps=12", "run.batch_size=64", "trainer.lr=0.01"}, sets...)...)
	report, err := app.Audit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range report.Violations {
		t.Error(v)
	}
	return app
}

// records reads what a topic of a run holds.
func records[T schemas.Record](t *testing.T, app *App, topic string) []T {
	t.Helper()
	var all []T
	if err := app.Runtime.Scan(t.Context(), []string{topic}, func(r schemas.Record) { all = append(all, r.(T)) }); err != nil {
		t.Fatal(err)
	}
	return all
}

// TestDistillation: under opd the policy's divergence from the teacher falls to less than half.
func TestDistillation(t *testing.T) {
	app := taught(t, "frozen.teacher.folder="+teacherFolder(t), "envs.catch.teacher=teacher", "scorer.advantage=opd", "run.max_steps=24")
	versions := records[*schemas.PolicyVersion](t, app, pipeline.TopicPolicies)
	first, last := versions[1].Metrics["kl_teacher"], versions[len(versions)-1].Metrics["kl_teacher"]
	t.Logf("divergence from the teacher: %.3f in the first step, %.3f in the last", first, last)
	if !(first > 0.1 && last < first/2) {
		t.Errorf("divergence %v, and %v at the end", first, last)
	}
}

// TestImitation: under sft the policy finds what the teacher says more probable, in rollouts it was not trained on, too.
func TestImitation(t *testing.T) {
	sets := []string{"frozen.teacher.folder=" + teacherFolder(t), "envs.catch.policy=teacher", "scorer.advantage=sft"}
	app := taught(t, sets...)
	for _, trace := range records[*schemas.Trace](t, app, pipeline.TopicTraces) {
		if schemas.FrozenPolicy(trace.Policy) != "teacher" || len(trace.Policy) != len("teacher@")+8 || trace.PolicyStart != nil {
			t.Fatalf("group %d was played by %q, from version %v on", trace.GroupID, trace.Policy, trace.PolicyStart)
		}
	}
	heldOut := records[*schemas.Trace](t, taught(t, append(sets, "run.seed=2", "run.max_steps=1")...), pipeline.TopicTraces)
	first, last := nll(t, app, 0, heldOut), nll(t, app, app.Config.Run.MaxSteps, heldOut)
	t.Logf("negative log-likelihood of held-out rollouts: %.3f before, %.3f after", first, last)
	if !(last < 0.95*first) {
		t.Errorf("negative log-likelihood %v, and %v at the end", first, last)
	}
}

// nll is the mean negative log-likelihood of the sampled tokens of traces under a version of a run.
func nll(t *testing.T, app *App, version int64, traces []*schemas.Trace) float64 {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	if err := trainer.Export(t.Context(), app.Runtime, app.Config.Model, version, dir); err != nil {
		t.Fatal(err)
	}
	model, _, err := lm.LoadFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	b := &lm.Batch{}
	for _, trace := range traces {
		n := 0
		for i := range trace.Nodes {
			n += trace.Nodes[i].TokenIDs.Len()
			b.Tokens, b.Mask = append(b.Tokens, trace.Nodes[i].TokenIDs.Values()...), append(b.Mask, trace.Nodes[i].Mask...)
		}
		if n > 0 {
			b.SeqLens = append(b.SeqLens, int32(n))
		}
	}
	logProbs, _, err := lm.NewLearner(model).Score(b)
	if err != nil {
		t.Fatal(err)
	}
	sum, n := 0.0, 0
	for i, m := range b.Mask {
		if m == 1 {
			sum -= float64(logProbs[i])
			n++
		}
	}
	return sum / float64(n)
}
