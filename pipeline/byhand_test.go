package pipeline

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// TestEvalByHandProvesNothing: a stage that has no state yet begins although somebody has written results by hand where it
// will write; not where one of its own is there.
func TestEvalByHandProvesNothing(t *testing.T) {
	result := func(rt *Runtime, eval string) {
		r, err := rt.Encode(t.Context(), Emission{TopicEvals, AutoPartition, &schemas.EvalResult{Eval: eval, Env: "toy", K: 1}})
		if err == nil {
			err = client(t, rt, kgo.RecordPartitioner(kgo.ManualPartitioner())).ProduceSync(t.Context(), r).FirstErr()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cfg := toyConfig()
	cfg.Proof = []string{TopicEvals}

	rt, _ := testRuntime(t)
	result(rt, ByHandPrefix+"x")
	stop := start(t, rt, cfg)
	produce(t, rt, pairsOf(0, 0)...)
	once(t, rt, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}

	rt, _ = testRuntime(t)
	result(rt, ByHandPrefix+"x")
	result(rt, "own")
	fatal(t, rt, cfg, "start a new run")
}

// TestEvalByHandNeedsItsRegistry: while nobody can say who wrote what is there, it proves nothing, and is looked at again.
func TestEvalByHandNeedsItsRegistry(t *testing.T) {
	rt, _ := testRuntime(t)
	reg := newRegistry(t)
	rt.Schemas = resolved(t, registryConfig(reg.URL()))
	rt.Schemas.cfg.Timeout = Duration(100 * time.Millisecond)
	id, _, err := reg.RegisterSchema("another program's results", otherWordsFor(t, "EvalResult"))
	if err != nil {
		t.Fatal(err)
	}
	send(t, rt, framedFor(t, rt, TopicEvals, id, &schemas.EvalResult{Eval: ByHandPrefix + "x", Env: "toy", K: 1}))
	asked := takeDown(reg)
	if own, err := rt.holdsOwn(t.Context(), TopicEvals); own || !errors.Is(err, ErrTransient) || len(asked) == 0 {
		t.Errorf("own %v, error %v, asked %d times", own, err, len(asked))
	}
	reg.ClearInterceptors()
	if own, err := rt.holdsOwn(t.Context(), TopicEvals); own || err != nil {
		t.Errorf("own %v, error %v", own, err)
	}
}
