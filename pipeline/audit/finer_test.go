package audit

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A branch may be missing among a rollout's samples where filters drop branches, or where agents have rewards of their own;
// those are then not held to the rollout's reward either.
func TestFiner(t *testing.T) {
	agents := func(l *testLog) {
		_, t := find[*schemas.Trace](l, pipeline.TopicTraces, func(v *schemas.Trace) bool { return v.GroupID == 4 })
		t.Nodes[2].Agent, t.Nodes[2].Reward = "solver", new(9.0)
	}
	for _, tt := range []struct {
		name   string
		change func(*testLog)
		cfg    Config
		want   bool // both are said
	}{
		{"neither", func(*testLog) {}, Config{}, true},
		{"agents", agents, Config{}, false},
		{"filters of branches", func(*testLog) {}, Config{Branchwise: map[string]bool{"e": true}}, false},
	} {
		l := newLog(t, false)
		_, sg := samplesOf(l, 4)
		sg.Samples = sg.Samples[:3]
		tt.change(l)
		said := func(text string) bool {
			for _, v := range l.audit(tt.cfg).Violations {
				if strings.Contains(v.Text, text) {
					return true
				}
			}
			return false
		}
		if got := said("branch 1 of rollout 1 of group 4 is left out"); got != tt.want {
			t.Errorf("%s: a branch is left out: %v", tt.name, got)
		}
		for i := range sg.Samples {
			sg.Samples[i].Advantages = schemas.PackFloat32s(make([]float32, sg.Samples[i].TokenIDs.Len()))
		}
		if got, want := said("of group 4 has advantages from"), tt.name != "agents"; got != want {
			t.Errorf("%s: wrong advantages: %v", tt.name, got)
		}
	}
}
