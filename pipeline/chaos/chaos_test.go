package chaos

import (
	"testing"
	"time"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

// TestChaos breaks a run for half a minute: on Apache Kafka, whose node is killed too, where there is one, else on the
// embedded broker.
func TestChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes a minute")
	}
	nodes := 1
	if kafka.Missing() != nil {
		t.Run("kafka", func(t *testing.T) { kafkatest.Need(t) }) // says what is missing
		nodes = 0
	}
	r, err := Run(t.Context(), Config{
		Dir: t.TempDir(), Seed: 2857, Nodes: nodes, Calm: 3 * time.Second, Chaos: 30 * time.Second, Every: 700 * time.Millisecond, Out: t.Output(),
	})
	t.Logf("\n%v", r)
	if err != nil {
		t.Fatal(err)
	}
	if n := r.Violated(); n > 0 {
		t.Errorf("%d violations", n)
	}
	if r.Kills < 10 {
		t.Errorf("%d processes were killed; the faults did not happen", r.Kills)
	}
	want := []Kind{Kill, Garbage, Duplicate}
	if nodes > 0 {
		want = append(want, BrokerKill)
	}
	for _, k := range want {
		if len(r.Faults[k]) == 0 {
			t.Errorf("no %q happened", k)
		}
	}
	if r.Audit.Groups == 0 || r.Audit.Packed == 0 || r.Audit.Versions < 10 {
		t.Error("the auditor had nothing to look at")
	}
}
