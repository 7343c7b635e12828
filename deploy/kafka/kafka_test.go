package kafka_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

// TestMain turns the test binary into a process that starts a Kafka in $PRL_TEST_PARENT and waits to be killed.
func TestMain(m *testing.M) {
	dir := os.Getenv("PRL_TEST_PARENT")
	if dir == "" {
		os.Exit(m.Run())
	}
	c, err := kafka.Start(context.Background(), kafka.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.Addrs()[0])
	select {}
}

const topic = "words"

func client(t *testing.T, addrs []string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addrs...), kgo.DefaultProduceTopic(topic), kgo.ConsumeTopics(topic)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// within bounds one step of a test.
func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func createTopic(t *testing.T, addrs []string) {
	t.Helper()
	if _, err := kadm.NewClient(client(t, addrs)).CreateTopic(within(t), 1, -1, nil, topic); err != nil {
		t.Fatal(err)
	}
}

func produce(t *testing.T, addrs []string, from, to int) {
	t.Helper()
	cl := client(t, addrs)
	var records []*kgo.Record
	for i := from; i < to; i++ {
		records = append(records, kgo.StringRecord(strconv.Itoa(i)))
	}
	if err := cl.ProduceSync(within(t), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// holds fails unless the topic is the numbers below n in order.
func holds(t *testing.T, addrs []string, n int) {
	t.Helper()
	cl := client(t, addrs)
	ctx := within(t)
	for i := 0; i < n; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("after %d of %d records: %v", i, n, err)
		}
		for _, r := range fetches.Records() {
			if string(r.Value) != strconv.Itoa(i) {
				t.Fatalf("record %d is %s", i, r.Value)
			}
			i++
		}
	}
}

// answers says whether a node does, within a second.
func answers(t *testing.T, addr string) bool {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return client(t, []string{addr}).Ping(ctx) == nil
}

func TestOneNodeKeepsWhatItAcknowledged(t *testing.T) {
	dir := t.TempDir()
	c := kafkatest.Start(t, kafka.Config{Dir: dir})
	addrs := c.Addrs()
	createTopic(t, addrs)
	produce(t, addrs, 0, 100)

	if err := c.Kill(0); err != nil {
		t.Fatal(err)
	}
	if answers(t, addrs[0]) {
		t.Fatal("a killed node answers")
	}
	for what, err := range map[string]error{"kill": c.Kill(0), "pause": c.Pause(0), "resume": c.Resume(0)} {
		if err == nil {
			t.Errorf("%s of a node that is gone: no error", what)
		}
	}
	if err := c.Restart(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	if err := c.Restart(t.Context(), 0); err == nil {
		t.Error("a node that runs was started again")
	}
	holds(t, addrs, 100)

	if err := c.Pause(0); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); answers(t, addrs[0]); { // a thread on another processor stops a little later
		if time.Now().After(deadline) {
			t.Fatal("a paused node answers")
		}
	}
	if err := c.Resume(0); err != nil {
		t.Fatal(err)
	}
	produce(t, addrs, 100, 200)

	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err != nil {
		t.Errorf("stopped again: %v", err)
	}
	again := kafkatest.Start(t, kafka.Config{Dir: dir})
	if again.Addrs()[0] != addrs[0] {
		t.Errorf("the same folder at %s, before at %s", again.Addrs()[0], addrs[0])
	}
	holds(t, again.Addrs(), 200)
}

// TestThreeNodesGoOnWithoutOne kills the leader of a topic; the others take over, and it comes back.
func TestThreeNodesGoOnWithoutOne(t *testing.T) {
	c := kafkatest.Start(t, kafka.Config{Nodes: 3})
	addrs := c.Addrs()
	createTopic(t, addrs)
	produce(t, addrs, 0, 100)
	leader := leaderOf(t, addrs)
	if err := c.Kill(leader); err != nil {
		t.Fatal(err)
	}
	produce(t, addrs, 100, 200)
	holds(t, addrs, 200)
	if now := leaderOf(t, addrs); now == leader {
		t.Errorf("node %d is dead and leads", leader)
	}
	if err := c.Restart(t.Context(), leader); err != nil {
		t.Fatal(err)
	}
	holds(t, addrs[leader:leader+1], 200)
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
}

func leaderOf(t *testing.T, addrs []string) int {
	t.Helper()
	topics, err := kadm.NewClient(client(t, addrs)).ListTopics(within(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	return int(topics[topic].Partitions[0].Leader)
}

// TestNodesDieWithTheirParent kills the process that started a Kafka with SIGKILL.
func TestNodesDieWithTheirParent(t *testing.T) {
	kafkatest.Need(t)
	dir := t.TempDir()
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PRL_TEST_PARENT="+dir)
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 1000)
	n, err := out.Read(said)
	addr := strings.TrimSpace(string(said[:n]))
	if err == nil {
		err = client(t, []string{addr}).Ping(within(t))
	}
	if err != nil {
		t.Errorf("no Kafka in the parent: %s (%v)", addr, err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // killed
	deadline := time.Now().Add(time.Minute)
	for {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err != nil {
			break
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("the node lives a minute longer than its parent")
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestStartSaysWhyNot has errors that quote Kafka's own words, and those that need none.
func TestStartSaysWhyNot(t *testing.T) {
	kafkatest.Need(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for name, c := range map[string]struct {
		cfg  kafka.Config
		want string
	}{
		"format": {kafka.Config{Properties: map[string]string{"num.partitions": "many"}}, "Not a number of type INT"},
		"server": {kafka.Config{Properties: map[string]string{"authorizer.class.name": "none.Such"}}, "none.Such"},
		"port":   {kafka.Config{Port: taken.Addr().(*net.TCPAddr).Port}, "address already in use"},
		"nodes":  {kafka.Config{Nodes: 2}, "1 or 3"},
	} {
		t.Run(name, func(t *testing.T) {
			c.cfg.Dir = t.TempDir()
			cluster, err := kafka.Start(t.Context(), c.cfg)
			if err == nil {
				err = errors.Join(errors.New("it started"), cluster.Close())
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v\ndoes not say %q", err, c.want)
			}
		})
	}
}
