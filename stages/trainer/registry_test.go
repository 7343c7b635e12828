package trainer

import (
	"net/http"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/pipeline"
)

// TestTrainerWaitsForTheRegistry gives the trainer batches under a schema id it has to ask for while the registry is down:
// that is no damaged batch.
func TestTrainerWaitsForTheRegistry(t *testing.T) {
	run := testRun("registry")
	run.MaxSteps = 1
	rt := testRuntime(t, testCluster(t), run)
	theirs, ours := srfake.New(), srfake.New()
	defer theirs.Close()
	defer ours.Close()
	theirs.SeedSchema("another", 1, 100, sr.Schema{Schema: `"string"`}) // ids go on from there
	resolve := func(reg *srfake.Registry) *pipeline.SchemaRegistry {
		cfg := pipeline.DefaultSchemaRegistryConfig()
		cfg.URLs, cfg.Timeout = []string{reg.URL()}, pipeline.Duration(time.Second)
		g, err := pipeline.NewSchemaRegistry(cfg, rt.Log)
		if err == nil {
			err = g.Resolve(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	rt.Schemas = resolve(theirs)
	pack(t, rt, kgo.TryCommit, microBatches(1)...)
	rt.Schemas = resolve(ours)
	batch, _ := theirs.GetSchema("prl.MicroBatch", 1)
	ours.SeedSchema("elsewhere", 1, batch.ID, batch.Schema)

	asked := make(chan struct{}, 1000)
	ours.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked <- struct{}{}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	_, wait := start(t, testTrainer(t, rt))
	for range 10 { // more than are put within the time-out
		select {
		case <-asked:
		case <-time.After(deadline):
			t.Fatal("the registry is not asked")
		}
	}
	ours.ClearInterceptors()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	checkChain(t, rt, 1)
}
