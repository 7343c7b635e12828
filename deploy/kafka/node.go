package kafka

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A node is one member of a cluster, running or not.
type node struct {
	number     int
	dir        string
	ports      map[string]int // by name of the listener
	cluster    string         // id
	properties map[string]string
	dist       distribution
	jvm        []string

	mu      sync.Mutex // one thing at a time is done to it
	process *process   // nil before the first start
}

func (n *node) log() string            { return filepath.Join(n.dir, "server.log") }
func (n *node) propertiesPath() string { return filepath.Join(n.dir, "server.properties") }

// checkPorts fails where somebody else listens on one of the node's ports.
func (n *node) checkPorts() error {
	for name, port := range n.ports {
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			return fmt.Errorf("listener %s: %w", name, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	return nil
}

// format writes the node's properties and, where it has no data yet, formats the folder for it.
func (n *node) format(ctx context.Context, args []string) error {
	if err := os.MkdirAll(filepath.Join(n.dir, "tmp"), 0o755); err != nil {
		return err
	}
	if err := writeProperties(n.propertiesPath(), n.properties); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(n.properties["log.dirs"], "meta.properties")); err == nil {
		return nil
	}
	java := append(n.dist.java("-Xmx256m"), "kafka.tools.StorageTool", "format", "--config", n.propertiesPath(), "--cluster-id", n.cluster)
	out, err := exec.CommandContext(ctx, java[0], append(java[1:], args...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, out)
	}
	return nil
}

// start starts the node, which answers some time later.
func (n *node) start() error {
	options := append(slices.Clone(n.jvm),
		"-XX:+UseSerialGC",
		"-Djava.io.tmpdir="+filepath.Join(n.dir, "tmp"), // snappy leaves its library there
	)
	p, err := startProcess(n.log(), append(n.dist.java(options...), "kafka.Kafka", n.propertiesPath()))
	if err != nil {
		return fmt.Errorf("start Kafka's node %d: %w", n.number, err)
	}
	n.process = p
	return nil
}

// awaitReady returns when the node itself answers and lists the nodes in want.
func (n *node) awaitReady(ctx context.Context, want []int) error {
	ctx, cancel := context.WithTimeout(ctx, readyDeadline)
	defer cancel()
	ctx, ended := context.WithCancel(ctx)
	defer ended()
	done := n.process.ended
	go func() {
		select {
		case <-done:
			ended()
		case <-ctx.Done():
		}
	}()
	for {
		have, err := n.members(ctx)
		if err == nil && !slices.ContainsFunc(want, func(w int) bool { return !slices.Contains(have, w) }) {
			return nil
		}
		select {
		case <-ctx.Done():
			if !n.process.running() {
				return fmt.Errorf("start Kafka's node %d: it ended:\n%s", n.number, lastWords(n.log()))
			}
			return fmt.Errorf("wait until Kafka's node %d lists nodes %v, not %v: %w\n%s", n.number, want, have, errors.Join(err, ctx.Err()), lastWords(n.log()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// members asks the node, and no other, which nodes there are.
func (n *node) members(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	// A client that knows nothing yet asks its seed.
	cl, err := kgo.NewClient(kgo.SeedBrokers(loopback(n.ports["PLAINTEXT"])), kgo.RequestRetries(0))
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	m, err := kadm.NewClient(cl).BrokerMetadata(ctx)
	if err != nil {
		return nil, err
	}
	if m.Cluster != n.cluster {
		return nil, fmt.Errorf("another Kafka answers at %s", loopback(n.ports["PLAINTEXT"]))
	}
	var numbers []int
	for _, b := range m.Brokers {
		numbers = append(numbers, int(b.NodeID))
	}
	return numbers, nil
}

// lastWords are the last lines of a log.
func lastWords(path string) string {
	const most = 2000 // bytes
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(data) > most {
		data = data[len(data)-most:]
		data = data[bytes.IndexByte(data, '\n')+1:]
	}
	return fmt.Sprintf("the end of %s:\n%s", path, strings.TrimSpace(string(data)))
}
