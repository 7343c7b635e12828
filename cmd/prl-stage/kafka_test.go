package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

// TestSameWeightsOnKafka runs one seed in ordered mode on Apache Kafka and on the embedded broker: the weights end with the
// same bytes.
func TestSameWeightsOnKafka(t *testing.T) {
	t.Parallel()
	got := finalWeights(t, startStage(t, nil,
		"--stage", "all", "--config", orderedConfig, "--run", fmt.Sprintf("test-%08x", rand.Uint32()), "--telemetry", "",
		"--brokers", strings.Join(kafkatest.Shared(t), ","), "--set", "dir="+t.TempDir(), "--set", "inference.listen=localhost:0",
	).ended(t, 2*runDeadline)) // Kafka shares the machine with the run
	if want := undisturbed(t); got != want {
		t.Errorf("weights %s on Apache Kafka, %s on the embedded broker", got, want)
	}
}
