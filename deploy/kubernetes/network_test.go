package kubernetes

import (
	"fmt"
	"slices"
	"testing"

	"github.com/prl-project/prl/stages"
)

type rule struct {
	From, To []peer
	Ports    []struct {
		Port     any
		Protocol string
	}
}

type peer struct {
	PodSelector, NamespaceSelector *labelSelector
}

// A host is who talks or is talked to: a pod of the run, or somebody in another namespace or none.
type host struct {
	name      string
	labels    map[string]string // nil where it is no pod of this namespace
	namespace string            // of another one
	ports     map[string]int    // names of its ports
}

// An edge is who needs whom.
type edge struct {
	from, to host
	port     int
	protocol string
}

func (e edge) String() string { return fmt.Sprintf("%s → %s:%d", e.from.name, e.to.name, e.port) }

var (
	kafka      = host{name: "kafka", namespace: "kafka"}
	dns        = host{name: "dns", namespace: "kube-system"}
	prometheus = host{name: "prometheus", namespace: "monitoring"}
	collector  = host{name: "collector", namespace: "monitoring"}
	browsers   = host{name: "ingress", namespace: "ingress"}
	internet   = host{name: "internet"}
	stranger   = host{name: "stranger", labels: map[string]string{"app": "stranger"}}
)

func hostOf(w object) host {
	h := host{name: w.Metadata.Name, labels: w.Spec.Template.Metadata.Labels, ports: map[string]int{}}
	for _, c := range w.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			h.ports[p.Name] = p.ContainerPort
		}
	}
	return h
}

// needed are the edges that the stages need: what reads or writes topics needs the brokers, by the flow; the rest is what the flow
// does not say.
func needed(list []object, full bool) (edges []edge) {
	var inference host
	for _, w := range workloads(list) {
		if w.stage() == "inference" {
			inference = hostOf(w)
		}
	}
	for _, w := range workloads(list) {
		h := hostOf(w)
		s, err := stages.Find(w.stage())
		if w.stage() == stages.SetupName || err == nil && len(slices.Concat(s.Reads, s.Writes, s.Tables, s.Deletes)) > 0 {
			ports := []int{9092}
			if full {
				ports = []int{9093, 9094}
			}
			for _, p := range ports {
				edges = append(edges, edge{h, kafka, p, "TCP"})
			}
		}
		edges = append(edges, edge{h, dns, 53, "UDP"}, edge{h, dns, 53, "TCP"})
		if full {
			edges = append(edges, edge{h, collector, 4318, "TCP"})
		}
		if w.stage() != stages.SetupName {
			edges = append(edges, edge{prometheus, h, 9090, "TCP"})
		}
		switch {
		case w.stage() == "envserver":
			edges = append(edges, edge{h, inference, 8000, "TCP"})
			if full && h.labels["app.kubernetes.io/component"] == "envserver-reverse-text" {
				edges = append(edges, edge{h, internet, 443, "TCP"})
			}
		case w.stage() == "trainer" && w.Spec.Completions > 1:
			edges = append(edges, edge{h, h, 29500, "TCP"}, edge{h, h, 41234, "TCP"})
		case w.stage() == "ui" && full:
			edges = append(edges, edge{browsers, h, 8080, "TCP"})
		}
	}
	return edges
}

// allowed is what a network does that heeds the policies.
func allowed(policies []object, e edge) bool {
	return passes(policies, "Egress", e.from, e.to, e) && passes(policies, "Ingress", e.to, e.from, e)
}

// passes says whether the policies of one end let the other through.
func passes(policies []object, direction string, end, other host, e edge) bool {
	heeded := false
	for _, p := range policies {
		if end.labels == nil || !slices.Contains(p.Spec.PolicyTypes, direction) || !p.Spec.PodSelector.matches(end.labels) {
			continue
		}
		heeded = true
		rules := p.Spec.Egress
		if direction == "Ingress" {
			rules = p.Spec.Ingress
		}
		for _, r := range rules {
			if r.fits(direction, other, e) {
				return true
			}
		}
	}
	return !heeded
}

func (r rule) fits(direction string, other host, e edge) bool {
	peers := r.To
	if direction == "Ingress" {
		peers = r.From
	}
	port := len(r.Ports) == 0
	for _, p := range r.Ports {
		number := p.Port == float64(e.port)
		if name, ok := p.Port.(string); ok {
			number = e.to.ports[name] == e.port
		}
		port = port || number && p.Protocol == e.protocol
	}
	return port && (len(peers) == 0 || slices.ContainsFunc(peers, func(p peer) bool { return p.is(other) }))
}

func (p peer) is(h host) bool {
	if p.NamespaceSelector != nil {
		return h.namespace != "" && p.NamespaceSelector.matches(map[string]string{"kubernetes.io/metadata.name": h.namespace})
	}
	return h.labels != nil && p.PodSelector != nil && p.PodSelector.matches(h.labels)
}

// cases are the values with policies, and whether they are those of testdata/full.yaml.
var policed = map[string]bool{"defaults": false, "gpu": false, "full": true, "both": true}

// TestStagesReachWhatTheyNeed: and each rule is needed by an edge: without it that one is cut.
func TestStagesReachWhatTheyNeed(t *testing.T) {
	for name, full := range policed {
		t.Run(name, func(t *testing.T) {
			list := render(t, values[name]...)
			policies := of(list, "NetworkPolicy")
			edges := needed(list, full)
			for _, e := range edges {
				if !allowed(policies, e) {
					t.Errorf("%v is cut", e)
				}
			}
			for i, p := range policies {
				for _, rules := range []*[]rule{&policies[i].Spec.Ingress, &policies[i].Spec.Egress} {
					all := *rules
					for j := range all {
						*rules = slices.Delete(slices.Clone(all), j, j+1)
						if !slices.ContainsFunc(edges, func(e edge) bool { return !allowed(policies, e) }) {
							t.Errorf("nothing needs rule %d of %s: %+v", j, p.Metadata.Name, all[j])
						}
					}
					*rules = all
				}
			}
		})
	}
}

// TestNobodyElseGetsThrough: what is not needed is not possible.
func TestNobodyElseGetsThrough(t *testing.T) {
	for name, full := range policed {
		t.Run(name, func(t *testing.T) {
			list := render(t, values[name]...)
			policies := of(list, "NetworkPolicy")
			var hosts []host
			for _, w := range workloads(list) {
				hosts = append(hosts, hostOf(w))
			}
			edges := needed(list, full)
			is := func(e edge) bool {
				return slices.ContainsFunc(edges, func(n edge) bool { return n.String() == e.String() && n.protocol == e.protocol })
			}
			for _, h := range hosts {
				var tried []edge
				for _, other := range append(slices.Clone(hosts), stranger, internet) {
					for _, port := range []int{22, 8000, 8080, 9090, 29500} {
						tried = append(tried, edge{h, other, port, "TCP"}, edge{other, h, port, "TCP"})
					}
				}
				tried = append(tried, edge{h, internet, 443, "TCP"}, edge{h, internet, 9090, "UDP"}, edge{kafka, h, 9090, "TCP"}, edge{prometheus, h, 8080, "TCP"})
				for _, e := range tried {
					ranks := e.from.name == e.to.name && e.from.labels["prl/stage"] == "trainer"
					if allowed(policies, e) && !is(e) && !ranks {
						t.Errorf("%v gets through", e)
					}
				}
			}
		})
	}
}
