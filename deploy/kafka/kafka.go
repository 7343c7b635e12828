// Package kafka runs Apache Kafka (KRaft) on this machine, from Maven Central jars and without Docker, to be tried, killed
// and stopped by tests and by hand.
//
// Guarantee: Start and Restart return a broker that answers and knows all the others; what it acknowledged survives Kill;
// no node outlives the process that started it, however that died, SIGKILL included; and nothing listens on anything but
// 127.0.0.1.
//
// Needs: Java 17 or newer, and Maven for the first start, which fills the cache (see Missing).
package kafka

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Version of Apache Kafka, as pom.xml names it.
const Version = "4.3.1"

const (
	// readyDeadline bounds the wait for a node that was started.
	readyDeadline = 2 * time.Minute
	// stopDeadline bounds the orderly stop of a quorum.
	stopDeadline = time.Minute
	// lastDeadline bounds that of the nodes that are left then.
	lastDeadline = 2 * time.Second
)

// Config says what to start.
type Config struct {
	// Dir holds the nodes' data, logs and properties, in node-0, node-1, …. A Dir that has been used goes on with its data
	// and its ports, and must be used with the same Nodes and Format.
	Dir string
	// Nodes is 1 (the default) or 3, each broker and controller in one.
	Nodes int
	// Port is that of the PLAINTEXT listener of node 0; the other nodes have the ports after it. 0, the default, takes free ones.
	Port int
	// Properties are further or other server properties, of all nodes, over those of properties.go. In their values stand
	//
	//	{port.NAME}  a free port of this node, the same wherever NAME is the same; PLAINTEXT and CONTROLLER are taken
	//	{node}       the number of the node
	//	{dir}        the absolute folder of the node
	//
	// so that a listener more is
	//
	//	"listeners": "PLAINTEXT://127.0.0.1:{port.PLAINTEXT},CONTROLLER://127.0.0.1:{port.CONTROLLER},SASL://127.0.0.1:{port.SASL}",
	//	"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT",
	//
	// and its addresses are those of Cluster.ListenerAddrs("SASL"). The PLAINTEXT listener must stay: Start asks there.
	Properties map[string]string
	// Format are further arguments of StorageTool format, such as --add-scram SCRAM-SHA-256=[name=…,password=…].
	Format []string
}

// Cluster is the nodes of one Kafka, numbered from 0; the number is also their node.id. Its methods may be called from
// several goroutines; those for the same node wait for each other.
type Cluster struct {
	nodes []*node
}

// Start formats and starts the nodes of cfg and returns when each of them answers and lists all. The first start on a
// machine downloads the jars and builds the class-data archive, which takes a minute or so.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Nodes == 0 {
		cfg.Nodes = 1
	}
	if cfg.Nodes != 1 && cfg.Nodes != 3 {
		return nil, fmt.Errorf("start Kafka with %d nodes: 1 or 3", cfg.Nodes)
	}
	if cfg.Dir == "" {
		return nil, errors.New("start Kafka: no folder for its data (Config.Dir)")
	}
	dist, err := install(ctx)
	if err != nil {
		return nil, fmt.Errorf("install Kafka %s: %w", Version, err)
	}
	return start(ctx, dist, cfg)
}

// start is Start with the jars in place.
func start(ctx context.Context, d distribution, cfg Config, jvm ...string) (*Cluster, error) {
	dir, err := filepath.Abs(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("start Kafka in %s: %w", cfg.Dir, err)
	}
	id, err := clusterID(dir)
	if err != nil {
		return nil, fmt.Errorf("start Kafka in %s: %w", dir, err)
	}
	ports, err := assignPorts(dir, cfg)
	if err != nil {
		return nil, fmt.Errorf("choose the ports of Kafka in %s: %w", dir, err)
	}
	heap := "-Xmx512m"
	if cfg.Nodes > 1 {
		heap = "-Xmx384m"
	}
	c := &Cluster{}
	for i := range cfg.Nodes {
		c.nodes = append(c.nodes, &node{
			number: i, dir: nodeDir(dir, i), ports: ports[i], cluster: id, properties: properties(cfg, ports, i, nodeDir(dir, i)),
			dist: d, jvm: append([]string{heap}, jvm...),
		})
	}
	for _, n := range c.nodes {
		if err := n.checkPorts(); err != nil {
			return nil, fmt.Errorf("start Kafka's node %d: %w", n.number, err)
		}
	}
	var all errgroup.Group
	for _, n := range c.nodes {
		all.Go(func() error {
			if err := n.format(ctx, cfg.Format); err != nil {
				return fmt.Errorf("format the data of Kafka's node %d: %w", n.number, err)
			}
			return n.start()
		})
	}
	err = all.Wait()
	if err == nil {
		for _, n := range c.nodes {
			err = errors.Join(err, n.awaitReady(ctx, c.numbers()))
		}
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Addrs are the addresses of the PLAINTEXT listeners, one per node.
func (c *Cluster) Addrs() []string { return c.ListenerAddrs("PLAINTEXT") }

// ListenerAddrs are the addresses of the listeners on {port.NAME}, one per node; none where no property names it.
func (c *Cluster) ListenerAddrs(name string) []string {
	var addrs []string
	for _, n := range c.nodes {
		if p, ok := n.ports[name]; ok {
			addrs = append(addrs, loopback(p))
		}
	}
	return addrs
}

// LastWords are the end of the node's log.
func (c *Cluster) LastWords(node int) string { return lastWords(c.nodes[node].log()) }

// Done is closed when the node has ended, however it did. A restart makes a new one.
func (c *Cluster) Done(node int) <-chan struct{} {
	n := c.nodes[node]
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process.ended
}

// Kill ends a running or paused node with SIGKILL and returns when it is gone.
func (c *Cluster) Kill(node int) error {
	return c.with(node, "kill", (*process).kill)
}

// Pause stops a node with SIGSTOP, as a long pause of its virtual machine or of the whole computer would.
func (c *Cluster) Pause(node int) error {
	return c.with(node, "pause", (*process).pause)
}

// Resume lets a paused node go on.
func (c *Cluster) Resume(node int) error {
	return c.with(node, "resume", (*process).resume)
}

// Restart starts a node that was killed, on its ports and data, and returns when it answers and lists itself.
func (c *Cluster) Restart(ctx context.Context, node int) error {
	n := c.nodes[node]
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.process.running() {
		return fmt.Errorf("restart Kafka's node %d: it runs", node)
	}
	if err := n.start(); err != nil {
		return err
	}
	return n.awaitReady(ctx, []int{node})
}

// Stop ends all nodes in order and together, and returns when they are gone. Nodes that have ended already are no error.
// The last of several cannot end in order, as they wait for the quorum that went before them: they are killed. So is a
// quorum that does not end in time, and that is an error.
func (c *Cluster) Stop() error {
	for _, n := range c.nodes {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	var errs []error
	ended := make(chan struct{}, len(c.nodes))
	for _, n := range c.nodes {
		if err := n.process.terminate(); err != nil {
			errs = append(errs, fmt.Errorf("stop Kafka's node %d: %w", n.number, err))
		}
		done := n.process.ended
		go func() {
			<-done
			ended <- struct{}{}
		}()
	}
	deadline := time.After(stopDeadline)
	for gone := 0; gone < len(c.nodes); gone++ {
		if gone == len(c.nodes)/2+1 {
			deadline = time.After(lastDeadline)
		}
		select {
		case <-ended:
			continue
		case <-deadline:
		}
		if gone <= len(c.nodes)/2 {
			errs = append(errs, fmt.Errorf("stop Kafka: %d of %d nodes have ended after %v", gone, len(c.nodes), stopDeadline))
		}
		for _, n := range c.nodes {
			if n.process.running() {
				errs = append(errs, n.process.kill())
			}
		}
		break
	}
	return errors.Join(errs...)
}

// Close ends all nodes that run with SIGKILL and returns when they are gone: the quick end of a Kafka whose data nobody
// wants.
func (c *Cluster) Close() error {
	var errs []error
	for _, n := range c.nodes {
		n.mu.Lock()
		if n.process.running() {
			errs = append(errs, n.process.kill())
		}
		n.mu.Unlock()
	}
	return errors.Join(errs...)
}

func (c *Cluster) with(number int, what string, do func(*process) error) error {
	n := c.nodes[number]
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.process.running() {
		return fmt.Errorf("%s Kafka's node %d: it does not run", what, number)
	}
	if err := do(n.process); err != nil {
		return fmt.Errorf("%s Kafka's node %d: %w", what, number, err)
	}
	return nil
}

func (c *Cluster) numbers() []int {
	var all []int
	for _, n := range c.nodes {
		all = append(all, n.number)
	}
	return all
}

func nodeDir(dir string, node int) string { return filepath.Join(dir, fmt.Sprintf("node-%d", node)) }

// clusterID is the id that the data in dir was formatted with, or a new one.
func clusterID(dir string) (string, error) {
	path := filepath.Join(dir, "cluster.id")
	if have, err := os.ReadFile(path); err == nil {
		return strings.TrimSpace(string(have)), nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	var id [16]byte
	_, _ = rand.Read(id[:]) // it never fails
	id[0] &= 0x3f           // no leading dash, which StorageTool would take for an option
	text := base64.RawURLEncoding.EncodeToString(id[:])
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	return text, os.WriteFile(path, []byte(text+"\n"), 0o644)
}
