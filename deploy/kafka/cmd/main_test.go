package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

// TestMain turns the test binary into the command itself where PRL_TEST_MAIN is set.
func TestMain(m *testing.M) {
	if os.Getenv("PRL_TEST_MAIN") != "" {
		main()
	}
	os.Exit(m.Run())
}

// runMain runs the command in a process of its own and returns what it wrote and its exit code.
func runMain(t *testing.T, env []string, args ...string) (output string, code int) {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), "PRL_TEST_MAIN=1", "TMPDIR="+t.TempDir()), env...)
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// TestCommandHasKafkaAndKeepsItsExitCode runs this test binary once more as the command, as TestAnswers.
func TestCommandHasKafkaAndKeepsItsExitCode(t *testing.T) {
	kafkatest.Need(t)
	out, code := runMain(t, []string{kafkatest.BrokersVariable + "="},
		"--", "sh", "-c", `PRL_TEST_MAIN= "$0" -test.run '^TestAnswers$' -test.v && exit 7`, os.Args[0])
	if code != 7 || !strings.Contains(out, "--- PASS: TestAnswers") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

// TestAnswers is what the command of the test above does.
func TestAnswers(t *testing.T) {
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Shared(t)...))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestOptional(t *testing.T) {
	bin, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	command := []string{"--optional", "--", bin, "-c", `echo "at <$PRL_TEST_KAFKA_BROKERS>"; exit 3`}
	out, code := runMain(t, []string{kafkatest.BrokersVariable + "=", "PATH=/nonexistent"}, command...)
	if code != 3 || !strings.Contains(out, "no Java") || !strings.Contains(out, "at <>") {
		t.Errorf("without Java: exit code %d:\n%s", code, out)
	}
	out, code = runMain(t, []string{kafkatest.BrokersVariable + "=elsewhere:1"}, command...)
	if code != 3 || !strings.Contains(out, "at <elsewhere:1>") {
		t.Errorf("with a Kafka elsewhere: exit code %d:\n%s", code, out)
	}
	out, code = runMain(t, []string{kafkatest.BrokersVariable + "=", "PATH=/nonexistent"}, command[1:]...)
	if code != 1 || !strings.Contains(out, "no Java") || strings.Contains(out, "at <") {
		t.Errorf("not optional: exit code %d:\n%s", code, out)
	}
}

func TestCommandEndedBySignal(t *testing.T) {
	if _, code := runMain(t, []string{kafkatest.BrokersVariable + "=elsewhere:1"}, "--optional", "--", "sh", "-c", "kill -TERM $$"); code != 128+15 {
		t.Errorf("exit code %d", code)
	}
}
