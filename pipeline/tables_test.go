package pipeline

import (
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// A start does not wait at the end of one table before it asks for the others: its first fetch names them all.
func TestTablesAreFetchedTogether(t *testing.T) {
	rt, cluster := testRuntime(t)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	rec, err := rt.Encode(t.Context(), Emission{Topic: TopicEnvs, Partition: AutoPartition, Value: &schemas.EnvInfo{Env: "toy", Version: "1"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	tables := []string{TopicPolicies, TopicEnvs, TopicState}
	var mu sync.Mutex
	var fetched []int
	cluster.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		fetched = append(fetched, len(req.(*kmsg.FetchRequest).Topics))
		return nil, nil, false
	})
	first := func() int {
		mu.Lock()
		fetched = nil
		mu.Unlock()
		read, err := newTable(t.Context(), rt, tables)
		if err != nil {
			t.Fatal(err)
		}
		defer read.close()
		if len(read.records) != 1 {
			t.Errorf("%d records of 1", len(read.records))
		}
		mu.Lock()
		defer mu.Unlock()
		if len(fetched) == 0 {
			return 0
		}
		return fetched[0]
	}
	for range 5 { // the client takes partitions up one by one, and seldom asks before it has all
		if first() == len(tables) {
			return
		}
	}
	t.Errorf("the first fetch never names all %d", len(tables))
}
