package ui

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/flow"
)

// A Notice is something that is wrong, and what to do about it.
type Notice struct {
	Level string `json:"level"` // bad, or odd
	Text  string `json:"text"`
	Link  string `json:"link,omitempty"` // a view of the page that shows it
}

const (
	bad = "bad"
	odd = "odd"

	quietServer  = 30 * time.Second // as [emitter] env_lost
	quietRun     = 5 * time.Minute
	enoughGroups = 50
)

// deadLetters are the records that were refused, as the files tell.
type deadLetters struct {
	Count  int64
	Newest string
}

func (u *UI) countDeadLetters() error {
	count, newest, err := u.files.DeadLetters()
	u.model.locked(func() { u.model.dlq = deadLetters{count, newest} })
	return err
}

// notices says what is wrong, the worst first; its own lock is held.
func (m *model) notices(v flow.View, now time.Time) []Notice {
	list := []Notice{}
	add := func(level, link, format string, args ...any) {
		list = append(list, Notice{level, fmt.Sprintf(format, args...), link})
	}
	newest, begun := m.run.Newest()
	ended := begun && newest.Final
	if m.load.Error != "" {
		add(bad, "", "The run cannot be followed: %s. It is tried again every %v.", m.load.Error, lookEvery)
	}
	if m.load.Failed != "" {
		add(odd, "", "The file %s cannot be read, and is left out; the log says why.", m.load.Failed)
	}
	live := m.load.Live && !ended
	if live {
		m.standstill(v, now, add)
	}
	if fates := m.recent.fates; len(fates) >= enoughGroups {
		count := map[string]int{}
		for _, f := range fates {
			count[f]++
		}
		if count[schemas.FatePacked] == 0 {
			way, n := most(count)
			add(bad, "/rollouts?fate=filtered,stale,errored,timed_out,overlong", "None of the newest %d groups is trained; %d ended as %s. %s", len(fates), n, way, meaning(way))
		} else if n := count[schemas.FateStale]; n*5 > len(fates) {
			add(odd, "/rollouts?fate=stale", "%d of the newest %d groups went stale. %s", n, len(fates), meaning(schemas.FateStale))
		}
	}
	if n := len(m.recent.errors); n >= enoughGroups {
		count := map[string]int{}
		for _, e := range m.recent.errors {
			if e != "" {
				count[e]++
			}
		}
		failed := 0
		for _, c := range count {
			failed += c
		}
		if text, c := most(count); failed*10 > n {
			level := odd
			if failed*2 > n {
				level = bad
			}
			add(level, "/rollouts?error=any&eval=any", "%d of the newest %d rollouts failed; %d times: %s", failed, n, c, clipText(text, 300))
		}
	}
	if m.recent.skipped > 0 && newest.Step-m.recent.skipped < 100 {
		add(bad, fmt.Sprintf("/step/%d", m.recent.skipped), "The gradient of step %d was not finite, and it changed nothing. A smaller trainer.lr or trainer.max_grad_norm may help; the step's batch shows what was in it.", m.recent.skipped)
	}
	if m.dlq.Count > 0 {
		add(odd, "/sql", "%d records were refused and are in the table dlq; the newest: %s", m.dlq.Count, clipText(m.dlq.Newest, 300))
	}
	return list
}

// standstill says what a run that goes on waits for.
func (m *model) standstill(v flow.View, now time.Time, add func(level, link, format string, args ...any)) {
	for _, s := range v.Stages {
		if s.Name == "envserver" && s.Instances > 0 && s.Quiet > quietServer.Seconds() && (s.Unread > 0 || s.Working > 0) {
			add(bad, "", "No environment server has written for %.0f s, and %d tasks are open. Is one running? prl-stage --stage envserver --env NAME starts one.", s.Quiet, s.Unread+s.Working)
		}
	}
	if !m.recent.outcome.IsZero() && now.Sub(m.recent.outcome) > quietRun {
		add(bad, "", "No group has ended for %v: %s", now.Sub(m.recent.outcome).Round(time.Second), waitsFor(v))
	}
}

// waitsFor says where records lie.
func waitsFor(v flow.View) string {
	for _, s := range v.Stages {
		if s.Unread > 0 && s.Name != "emitter" {
			return fmt.Sprintf("%d records wait for the stage %s. Is it running?", s.Unread, s.Name)
		}
	}
	return "nothing waits for a stage; rollouts take longer than that, or the emitter does not run."
}

// meaning says what to do about a way in which groups end.
func meaning(way string) string {
	switch way {
	case "filtered:zero_advantage":
		return "All rollouts of a group had the same reward: the tasks are too easy or too hard for the policy, or the reward is constant."
	case schemas.FateStale:
		return "Rollouts take longer than the policy stays young: more environment servers or inference, fewer emitter.permits, or a larger run.max_off_policy_steps."
	case schemas.FateErrored:
		return "Their rollouts failed: the errors stand with the rollouts."
	case schemas.FateTimedOut:
		return "Rollouts take longer than envs.<name>.group_timeout, or no environment server runs."
	case schemas.FateOverlong:
		return "Their samples are longer than run.seq_len: make that larger, or max_rollout_tokens smaller."
	}
	return ""
}

func most(count map[string]int) (word string, n int) {
	for w, c := range count {
		if c > n || c == n && w < word {
			word, n = w, c
		}
	}
	return word, n
}

func clipText(s string, most int) string {
	if r := []rune(s); len(r) > most {
		return string(r[:most]) + "…"
	}
	return s
}
