package stages

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// TestACLs holds the operators' table to the flow. `make generate` writes it anew.
func TestACLs(t *testing.T) {
	const path = "../deploy/kafka/acls.csv"
	want := ACLs("<run>")
	if have, err := os.ReadFile(path); err == nil && string(have) == want {
		return
	}
	if !*update {
		t.Fatal("deploy/kafka/acls.csv is behind the flow: make generate")
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRightsAreLeast holds what stages may do to what must be one stage's alone.
func TestRightsAreLeast(t *testing.T) {
	holders := map[string][]string{}
	for _, s := range Flow {
		for _, r := range s.Rights("demo") {
			if !strings.HasPrefix(r.Name, "demo.") && r.Resource != pipeline.ResourceCluster {
				t.Errorf("%s: %v is about no resource of the run", s.Name, r)
			}
			holders[r.Operation+" "+r.Name] = append(holders[r.Operation+" "+r.Name], s.Name)
		}
	}
	for right, want := range map[string][]string{
		"Write demo.policies":           {"trainer"},
		"Write demo.batches":            {"packer"},
		"Write demo.samples":            {"scorer"},
		"Write demo.tasks.":             {"emitter", "eval"},
		"Read demo.tasks.":              {"envserver", "sink", "cleanup", "ui"},
		"Write demo.state":              {"emitter", "envserver", "scorer", "packer", "eval"},
		"Delete demo.policies":          nil,
		"Create demo.":                  nil,
		"IdempotentWrite kafka-cluster": {"envserver"},
		"Write demo.trainer":            {"trainer"},
		"Write demo.shadow.":            {"shadow"},
		"Write demo.scorer.":            {"scorer"},
		"Read demo.scorer":              {"scorer"},
		"Read demo.envserver.":          {"envserver"},
	} {
		if got := holders[right]; !slices.Equal(got, want) {
			t.Errorf("%s: %v have the right, want %v", right, got, want)
		}
	}
}
