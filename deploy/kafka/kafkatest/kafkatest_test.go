package kafkatest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

func TestEach(t *testing.T) {
	kafkatest.Each(t, func(t *testing.T, b kafkatest.Broker) {
		if (b.Fake != nil) != (b.Name == "kfake") {
			t.Errorf("%+v", b)
		}
		cl, err := kgo.NewClient(kgo.SeedBrokers(b.Addrs...))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.Ping(t.Context()); err != nil {
			t.Error(err)
		}
	}, kfake.SeedTopics(1, "words"))
}

// TestInvariant_RunsOrSaysWhyNot runs a test that wants Apache Kafka where there is none: it is skipped, and where Kafka is
// required it fails; either way it says what is missing.
func TestInvariant_RunsOrSaysWhyNot(t *testing.T) {
	for _, c := range []struct{ wants, path, said string }{
		{"shared", os.Getenv("PATH"), "make kafka"},
		{"shared", "/nonexistent", "no Java 17"},
		{"own", "/nonexistent", "no Java 17"},
	} {
		if err := kafka.Missing(); err != nil && c.path != "/nonexistent" {
			continue // here Java is missing anyway
		}
		for _, required := range []bool{false, true} {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestWants$", "-test.v")
			cmd.Env = []string{"PATH=" + c.path, "TMPDIR=" + t.TempDir(), "HOME=" + t.TempDir(), "WANTS=" + c.wants}
			if required {
				cmd.Env = append(cmd.Env, kafkatest.RequiredVariable+"=required")
			}
			out, err := cmd.CombinedOutput()
			want := "--- SKIP: TestWants"
			if required {
				want = "--- FAIL: TestWants"
			}
			if text := string(out); (err != nil) != required || !strings.Contains(text, want) || !strings.Contains(text, c.said) {
				t.Errorf("wants %s, PATH=%s, required %v: %v\n%s", c.wants, c.path, required, err, text)
			}
		}
	}
}

// TestWants is run by the test above.
func TestWants(t *testing.T) {
	switch os.Getenv("WANTS") {
	case "shared":
		kafkatest.Shared(t)
	case "own":
		kafkatest.Start(t, kafka.Config{})
	}
}
