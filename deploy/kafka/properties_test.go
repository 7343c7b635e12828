package kafka

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPropertiesOverrideAndFillIn(t *testing.T) {
	dir := t.TempDir()
	cfg := Config{Nodes: 3, Properties: map[string]string{
		"listeners":     "PLAINTEXT://127.0.0.1:{port.PLAINTEXT},CONTROLLER://127.0.0.1:{port.CONTROLLER},SASL://127.0.0.1:{port.SASL}",
		"broker.rack":   "rack-{node}",
		"metadata.size": "{dir}/{unknown}",
	}}
	ports, err := assignPorts(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	again, err := assignPorts(dir, cfg)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[int]bool{}
	for i, names := range ports {
		if len(names) != 3 {
			t.Errorf("node %d has ports %v", i, names)
		}
		for name, port := range names {
			if port == 0 || seen[port] {
				t.Errorf("node %d: port %d of %s", i, port, name)
			}
			seen[port] = true
			if again[i][name] != port {
				t.Errorf("node %d: %s has port %d, then %d", i, name, port, again[i][name])
			}
		}
	}
	p := properties(cfg, ports, 2, "/data/node-2")
	for key, want := range map[string]string{
		"node.id":       "2",
		"broker.rack":   "rack-2",
		"metadata.size": "/data/node-2/{unknown}",
		"log.dirs":      "/data/node-2/data",
		"listeners":     "PLAINTEXT://" + loopback(ports[2]["PLAINTEXT"]) + ",CONTROLLER://" + loopback(ports[2]["CONTROLLER"]) + ",SASL://" + loopback(ports[2]["SASL"]),
		"controller.quorum.voters": "0@" + loopback(ports[0]["CONTROLLER"]) + ",1@" + loopback(ports[1]["CONTROLLER"]) +
			",2@" + loopback(ports[2]["CONTROLLER"]),
		"transaction.state.log.min.isr": "2",
	} {
		if p[key] != want {
			t.Errorf("%s=%s, want %s", key, p[key], want)
		}
	}
	cfg.Nodes = 1
	if _, err := assignPorts(dir, cfg); err == nil || !strings.Contains(err.Error(), "3 nodes") {
		t.Errorf("a folder of three nodes was taken for one: %v", err)
	}
}

func TestFixedPorts(t *testing.T) {
	ports, err := assignPorts(t.TempDir(), Config{Nodes: 3, Port: 9092})
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range ports {
		if p["PLAINTEXT"] != 9092+i {
			t.Errorf("node %d: %v", i, p)
		}
	}
}

func TestWrittenPropertiesAreOneLineEach(t *testing.T) {
	path := filepath.Join(t.TempDir(), "server.properties")
	if err := writeProperties(path, map[string]string{"b": "two\nlines", "a": `C:\dir`}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if want := "a=C:\\\\dir\nb=two\\nlines\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}
