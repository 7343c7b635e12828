package emitter

import (
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// FuzzCore plays any events, two bytes each: outcomes of groups open, decided and never heard of, requests that make no
// sense, environments that come and go, versions, jumps of the clock, restarts. Whatever comes, no rollout of an attempt
// is emitted twice, ids are dense, permits hold, and a group is ended by the clock once.
func FuzzCore(f *testing.F) {
	f.Add(uint8(0), []byte{0, 9, 0, 9, 1, 0, 2, 1, 3, 0, 6, 0, 0, 9})
	f.Add(uint8(5), []byte{0, 9, 1, 0, 1, 64, 0, 9, 5, 2, 1, 65, 6, 0, 0, 9, 1, 2, 0, 9})
	f.Add(uint8(2), []byte{0, 200, 4, 1, 5, 5, 7, 3, 2, 0, 6, 0, 0, 255, 0, 255, 3, 1})
	f.Fuzz(func(t *testing.T, kind uint8, b []byte) {
		cfg, envs := DefaultConfig(), testEnvs()
		switch kind & 3 {
		case 1:
			learners()["progress, pools"](&cfg, envs)
		case 2:
			learners()["tokens, gate"](&cfg, envs)
		}
		if kind&4 != 0 {
			cfg.Staleness = StalenessWait
			change(envs, func(c *EnvConfig) { c.GroupSize = 4 })
		}
		cfg.Permits = 40
		w := ready(t, testRun(), cfg, envs)
		w.score = byTask
		for ; len(b) >= 2; b = b[2:] {
			x := int64(int8(b[1]))
			switch b[0] & 7 {
			case 0:
				w.tick(time.Duration(b[1]) * 10 * time.Second)
			case 1:
				if len(w.open) > 0 {
					w.outcome(w.open[int(b[1])%len(w.open)], int64(b[1]>>6))
				}
			case 2: // of any group
				w.feed(pipeline.TopicOutcomes, w.offset(), &schemas.GroupOutcome{Env: "catch", GroupID: max(0, x), Eval: []string{"", "e"}[b[1]&1], Fate: schemas.FateStale})
			case 3:
				w.request(&schemas.Request{Kind: schemas.RequestRefill, GroupID: x, RolloutIndex: int(x), Attempt: int(b[0] >> 3)})
			case 4:
				w.request(&schemas.Request{Kind: schemas.RequestWave, Step: x, Wave: int(b[0] >> 3), Rollouts: int(x)})
			case 5:
				w.table(policy(max(0, x), b[0]>>7 == 1))
			case 6:
				w.r.Restart(t)
			case 7:
				w.table(info([]string{"catch", "wordle", "stranger"}[int(b[1])%3], 1+max(0, x))) // none at all is an error of its own
			}
		}
		type attempt struct {
			group          int64
			index, attempt int
		}
		seen, largest := map[attempt]bool{}, int64(-1)
		for _, task := range w.tasks {
			key := attempt{task.GroupID, task.RolloutIndex, task.Attempt}
			if seen[key] {
				t.Fatalf("%+v was emitted twice", key)
			}
			seen[key] = true
			if task.GroupID > largest+1 {
				t.Fatalf("group %d comes after %d", task.GroupID, largest)
			}
			largest = max(largest, task.GroupID)
			if err := task.Validate(); err != nil {
				t.Fatal(err)
			}
		}
		ended := map[attempt]bool{}
		for _, tr := range w.traces {
			if tr.Errors[0].Type == "attempts" { // as often as it was asked for
				continue
			}
			key := attempt{tr.GroupID, tr.RolloutIndex, 0}
			if ended[key] {
				t.Fatalf("%+v was ended twice", key)
			}
			ended[key] = true
		}
	})
}
