// Package kafkatest gives tests a broker: kfake in the test's process, the Apache Kafka that `make test` starts for all of
// them, or one of the test's own.
//
// Guarantee: a test that wants Apache Kafka runs on it or says why not: it is skipped where there is none, and fails where
// PRL_TEST_KAFKA=required. Nothing is left running after the test.
package kafkatest

import (
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/deploy/kafka"
)

const (
	// BrokersVariable names the addresses of the shared Apache Kafka, host:port, with commas between.
	BrokersVariable = "PRL_TEST_KAFKA_BROKERS"
	// RequiredVariable turns every skip for want of Apache Kafka into a failure where it is "required".
	RequiredVariable = "PRL_TEST_KAFKA"
)

// Broker is what a test talks to.
type Broker struct {
	Name  string         // kfake or kafka
	Addrs []string       // where clients start
	Fake  *kfake.Cluster // to inject faults into; nil on Apache Kafka
}

// Each runs test once on a kfake of its own with opts, and once on the shared Apache Kafka, as subtests "kfake" and
// "kafka". There other tests have topics, groups and transactional ids of their own: test chooses names with a random part.
func Each(t *testing.T, test func(t *testing.T, b Broker), opts ...kfake.Opt) {
	t.Helper()
	t.Run("kfake", func(t *testing.T) {
		fake, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(fake.Close)
		test(t, Broker{Name: "kfake", Addrs: fake.ListenAddrs(), Fake: fake})
	})
	t.Run("kafka", func(t *testing.T) {
		test(t, Broker{Name: "kafka", Addrs: Shared(t)})
	})
}

// Shared is the addresses of the one Apache Kafka that all tests share. Nobody breaks it.
func Shared(t testing.TB) []string {
	t.Helper()
	addrs := os.Getenv(BrokersVariable)
	if addrs == "" {
		if err := kafka.Missing(); err != nil {
			without(t, err.Error())
		}
		without(t, "no Apache Kafka: `make test` starts one, or run `make kafka` and set "+BrokersVariable+"=localhost:9092")
	}
	return strings.Split(addrs, ",")
}

// Start starts an Apache Kafka for this test alone, to be broken or set up otherwise. Dir may be left empty.
func Start(t testing.TB, cfg kafka.Config) *kafka.Cluster {
	t.Helper()
	Need(t)
	if cfg.Dir == "" {
		cfg.Dir = t.TempDir()
	}
	c, err := kafka.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// Need ends a test that starts an Apache Kafka by other means than Start where it cannot.
func Need(t testing.TB) {
	t.Helper()
	if err := kafka.Missing(); err != nil {
		without(t, err.Error())
	}
	if testing.Short() {
		without(t, "-short: no Apache Kafka of its own")
	}
}

// without ends a test that has no Apache Kafka.
func without(t testing.TB, why string) {
	t.Helper()
	if os.Getenv(RequiredVariable) == "required" {
		t.Fatalf("%s (%s=required)", why, RequiredVariable)
	}
	t.Skip(why)
}
