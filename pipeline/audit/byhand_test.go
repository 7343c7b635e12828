package audit

import (
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// An eval by hand may be left with groups that nothing decides, and have a further result once what failed was played
// again; when nothing had failed it may not.
func TestEvalByHand(t *testing.T) {
	const name = pipeline.ByHandPrefix + "x"
	plant := func(eval string, errored ...int64) *Report {
		l := newLog(t, false)
		_, task := find[*schemas.Task](l, pipeline.TopicTasks("e"), func(v *schemas.Task) bool { return v.Eval == "q" && v.RolloutIndex == 0 })
		for i := range task.GroupSize {
			one := *task
			one.Eval, one.RolloutIndex = eval, i
			l.put(pipeline.TopicTasks("e"), 0, &one)
		}
		for _, n := range errored {
			l.put(pipeline.TopicEvals, 0, &schemas.EvalResult{Eval: eval, Env: "e", K: 2, Examples: 1, Errored: n})
		}
		return l.audit(Config{Ended: true})
	}
	if r := plant(name, 2, 1, 0); r.Total() != 0 {
		t.Errorf("%v", r)
	}
	expect(t, plant("p", 1), OneOutcome, "group p/0 of e has no outcome")
	expect(t, plant(name, 1, 0, 0), OneOutcome, "eval "+name+" of version 0 has a second result")
	expect(t, plant("p", 1, 0), OneOutcome, "eval p of version 0 has a second result")
}
