package pipeline

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// TestProduceIsRetriedWithinItsTransaction refuses the first records of a client, as Kafka does while it still ends the
// transaction before. The client asks for metadata before it tries again, and has just had some: it must not wait until
// they are old, which takes longer than a transaction may.
func TestProduceIsRetriedWithinItsTransaction(t *testing.T) {
	rt, cluster := testRuntime(t)
	cl, err := rt.Client(kgo.TransactionalID("retry"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	fired := fault{kmsg.Produce, kerr.ConcurrentTransactions, 1, 1}.inject(t, rt, cluster)
	r, err := rt.Encode(t.Context(), Emission{TopicSamples, AutoPartition, &schemas.SampleGroup{Env: "toy", Emitted: 2, Reason: schemas.FateFiltered}})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // as long as a processor gives it
	defer cancel()
	if err := ProduceAll(ctx, cl, []*kgo.Record{r}); err != nil {
		t.Error(err)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Error(err)
	}
	if fired() != 1 {
		t.Errorf("the fault happened %d times", fired())
	}
}
