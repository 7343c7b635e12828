package chaos

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/deploy/kafka"
)

// Brokers are what the pipeline runs on.
type brokers struct {
	addrs  []string
	dir    string         // of Kafka's nodes
	kafka  *kafka.Cluster // nil for the embedded broker
	single *process       // the embedded broker

	mu     sync.Mutex
	busy   []sync.Mutex // one per node: who kills or restarts it
	wedges []string     // faults of Kafka itself that a restart cured
}

// wedged are the words of a fault of Kafka 4.3.1: after SIGKILL of a broker its group coordinator now and then refuses
// to go on although nothing is lost, until the broker is restarted.
var wedged = []string{"out of sync with the underlying log", "No in-memory snapshot"}

// startKafka starts a cluster of 1 or 3 nodes.
func startKafka(ctx context.Context, dir string, nodes int) (*brokers, error) {
	dir = filepath.Join(dir, "kafka")
	c, err := kafka.Start(ctx, kafka.Config{Dir: dir, Nodes: nodes})
	if err != nil {
		return nil, err
	}
	return &brokers{dir: dir, addrs: c.Addrs(), kafka: c, busy: make([]sync.Mutex, nodes)}, nil
}

func (b *brokers) nodes() int { return len(b.busy) }

// kill ends a node with SIGKILL and starts it again after d.
func (b *brokers) kill(ctx context.Context, node int, d time.Duration) error {
	b.busy[node].Lock()
	defer b.busy[node].Unlock()
	if err := b.kafka.Kill(node); err != nil {
		return err
	}
	time.Sleep(d)
	return b.kafka.Restart(ctx, node)
}

// nap stops a node with SIGSTOP for a while.
func (b *brokers) nap(node int, d time.Duration) error {
	b.busy[node].Lock()
	defer b.busy[node].Unlock()
	if err := b.kafka.Pause(node); err != nil {
		return err
	}
	time.Sleep(d)
	return b.kafka.Resume(node)
}

func (b *brokers) stop() error {
	if b.kafka != nil {
		return b.kafka.Stop()
	}
	return stopInOrder("broker", b.single)
}

// guard reads the nodes' logs until ctx ends and restarts a node whose group coordinator is wedged: that is Kafka's own
// fault, and is counted apart.
func (b *brokers) guard(ctx context.Context) {
	var all sync.WaitGroup
	for node := range b.busy {
		all.Go(func() { b.guardNode(ctx, node) })
	}
	all.Wait()
}

func (b *brokers) guardNode(ctx context.Context, node int) {
	f, err := os.Open(filepath.Join(b.dir, fmt.Sprintf("node-%d", node), "server.log"))
	if err != nil {
		return // no log, nothing to see
	}
	defer f.Close()
	lines := bufio.NewReader(f)
	for ctx.Err() == nil {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			select {
			case <-ctx.Done():
			case <-time.After(time.Second):
			}
			continue
		}
		if err != nil || !isWedged(line) {
			continue
		}
		b.mu.Lock()
		b.wedges = append(b.wedges, fmt.Sprintf("node %d at %s: %s", node, time.Now().Format(time.TimeOnly), strings.TrimSpace(line)))
		b.mu.Unlock()
		if err := b.kill(ctx, node, 0); err != nil {
			b.mu.Lock()
			b.wedges = append(b.wedges, err.Error())
			b.mu.Unlock()
		}
		if _, err := f.Seek(0, io.SeekEnd); err != nil { // the rest speaks of the same
			return
		}
		lines.Reset(f)
	}
}

func isWedged(line string) bool {
	for _, w := range wedged {
		if strings.Contains(line, w) {
			return true
		}
	}
	return false
}
