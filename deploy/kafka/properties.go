package kafka

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// properties are those of one node: defaults that start fast and fail over fast, then the configuration's own.
func properties(cfg Config, ports []map[string]int, node int, dir string) map[string]string {
	var voters []string
	for i, p := range ports {
		voters = append(voters, fmt.Sprintf("%d@%s", i, loopback(p["CONTROLLER"])))
	}
	p := map[string]string{
		"process.roles":                  "broker,controller",
		"node.id":                        "{node}",
		"controller.quorum.voters":       strings.Join(voters, ","),
		"controller.listener.names":      "CONTROLLER",
		"listeners":                      "PLAINTEXT://127.0.0.1:{port.PLAINTEXT},CONTROLLER://127.0.0.1:{port.CONTROLLER}",
		"listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"inter.broker.listener.name":     "PLAINTEXT",
		"log.dirs":                       "{dir}/data",
		// A topic that nobody made is a mistake.
		"auto.create.topics.enable": "false",
		// Internal topics: as durable as the nodes allow, and no more partitions than tests need.
		"offsets.topic.num.partitions":             "1",
		"offsets.topic.replication.factor":         strconv.Itoa(cfg.Nodes),
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.replication.factor": strconv.Itoa(cfg.Nodes),
		"transaction.state.log.min.isr":            strconv.Itoa((cfg.Nodes + 1) / 2),
		"default.replication.factor":               strconv.Itoa(cfg.Nodes),
		"min.insync.replicas":                      strconv.Itoa((cfg.Nodes + 1) / 2),
		// A killed node is missed, and may come back, after two seconds.
		"broker.session.timeout.ms":    "2000",
		"broker.heartbeat.interval.ms": "500",
		// A group starts with its first member.
		"group.initial.rebalance.delay.ms": "0",
		// A transaction that follows one whose end is still being written waits this long at the broker, 20 ms by default:
		// most of what a transaction takes.
		"add.partitions.to.txn.retry.backoff.ms": "1",
		// The cleaner's buffer is 128 MiB otherwise.
		"log.cleaner.dedupe.buffer.size": "16777216",
	}
	maps.Copy(p, cfg.Properties)
	for k, v := range p {
		p[k] = placeholder.ReplaceAllStringFunc(v, func(s string) string {
			switch name := strings.Trim(s, "{}"); name {
			case "node":
				return strconv.Itoa(node)
			case "dir":
				return dir
			default:
				return strconv.Itoa(ports[node][strings.TrimPrefix(name, "port.")])
			}
		})
	}
	return p
}

// placeholder is what a property may leave to the start.
var placeholder = regexp.MustCompile(`\{(node|dir|port\.\w+)\}`)

// writeProperties writes a properties file.
func writeProperties(path string, properties map[string]string) error {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(properties)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.NewReplacer(`\`, `\\`, "\n", `\n`).Replace(properties[k]))
	}
	return os.WriteFile(path, []byte(b.String()), 0o600) // it may hold passwords
}

// assignPorts gives every node a port for each listener, those of an earlier start where dir has them.
func assignPorts(dir string, cfg Config) ([]map[string]int, error) {
	path := filepath.Join(dir, "ports.json")
	ports := make([]map[string]int, cfg.Nodes)
	data, err := os.ReadFile(path)
	if err == nil {
		if err := json.Unmarshal(data, &ports); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if len(ports) != cfg.Nodes {
			return nil, fmt.Errorf("%s was used with %d nodes, not %d", dir, len(ports), cfg.Nodes)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	taken := map[int]bool{}
	for _, p := range ports {
		for _, port := range p {
			taken[port] = true
		}
	}
	for i := range ports {
		if ports[i] == nil {
			ports[i] = map[string]int{}
		}
		if cfg.Port != 0 {
			ports[i]["PLAINTEXT"] = cfg.Port + i
			taken[cfg.Port+i] = true
		}
		for _, name := range listeners(cfg) {
			if ports[i][name] == 0 {
				if ports[i][name], err = freePort(taken); err != nil {
					return nil, err
				}
			}
		}
	}
	if data, err = json.Marshal(ports); err != nil {
		return nil, err
	}
	return ports, os.WriteFile(path, data, 0o644)
}

// listeners are the names in all the placeholders for ports.
func listeners(cfg Config) []string {
	names := []string{"PLAINTEXT", "CONTROLLER"}
	for _, v := range cfg.Properties {
		for _, m := range placeholder.FindAllStringSubmatch(v, -1) {
			if name, ok := strings.CutPrefix(m[1], "port."); ok {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// freePort finds a port that nobody listens on. It lies below those that systems give to outgoing connections, so that it
// is still free when its node is started again.
func freePort(taken map[int]bool) (int, error) {
	for range 1000 {
		port := 15000 + rand.IntN(17000)
		if taken[port] {
			continue
		}
		l, err := net.Listen("tcp", loopback(port))
		if err != nil {
			continue
		}
		taken[port] = true
		return port, l.Close()
	}
	return 0, errors.New("no free port between 15000 and 32000")
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }
