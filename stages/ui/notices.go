package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/flow"
)

// A Notice is something that is wrong, and what to do about it.
type Notice struct {
	Level  string `json:"level"` // bad, or odd
	Text   string `json:"text"`
	Link   string `json:"link,omitempty"`  // a view of the page that shows it
	Fault  string `json:"fault,omitempty"` // its name in the log, in alerts and in the runbook
	report faults.Report
}

const (
	bad = "bad"
	odd = "odd"

	quietServer  = 30 * time.Second // as [emitter] env_lost
	quietRun     = 5 * time.Minute
	enoughGroups = 50
)

// list is notices, one for each fault of a stage.
type list []Notice

func (l *list) add(level, link, format string, args ...any) {
	*l = append(*l, Notice{Level: level, Text: fmt.Sprintf(format, args...), Link: link})
}

// fault adds a fault, unless there is one of the name already that says what it is about.
func (l *list) fault(link string, r faults.Report) {
	for i, n := range *l {
		if n.Fault != r.Fault.Name || n.report.About != "" && r.About != "" && n.report.About != r.About || n.report.Stage != r.Stage && r.Ended {
			continue
		}
		if (*l)[i].Link == "" {
			(*l)[i].Link = link
		}
		return
	}
	n := Notice{Level: bad, Link: link, Fault: r.Fault.Name, Text: r.Fault.Says, report: r}
	if r.Fault == faults.PoisonTask || r.Fault == faults.DeadLetters {
		n.Level = odd
	}
	if r.Why != "" {
		n.Text += " " + where(r) + clipText(r.Why, 600) + "."
	}
	n.Text += " " + r.Fault.Do
	*l = append(*l, n)
}

func (l *list) has(f faults.Fault) bool {
	return slices.ContainsFunc(*l, func(n Notice) bool { return n.Fault == f.Name })
}

// where says whose fault it is.
func where(r faults.Report) string {
	if r.Stage == "" {
		return ""
	}
	return r.Stage + ": "
}

// notices says what is wrong.
func (u *UI) notices() (list []Notice) {
	view := u.flowView()
	own := u.rt.Faults.Active()
	u.model.locked(func() { list = u.model.notices(view, own, u.now()) })
	return list
}

// notices says what is wrong, the worst first; its own lock is held. own are the faults of this process.
func (m *model) notices(v flow.View, own []faults.Report, now time.Time) []Notice {
	all := list{}
	newest, begun := m.run.Newest()
	ended := begun && newest.Final
	told := append(m.told.active(now), own...)
	slices.SortFunc(told, faults.Compare)
	for _, r := range told {
		if !ended || !r.Ended {
			all.fault("", r)
		}
	}
	switch down := strings.HasPrefix(m.load.Error, unanswered); {
	case down && m.load.Error != "":
		all.fault("", faults.Report{Fault: faults.BrokerDown, Why: "The run cannot be followed: " + m.load.Error + ", the page shows what it knew; it tries again every " + lookEvery.String()})
	case m.load.Error != "":
		all.add(bad, "", "The run cannot be followed: %s. It is tried again every %v.", m.load.Error, lookEvery)
	}
	if m.load.Failed != "" {
		all.add(odd, "", "The file %s cannot be read, and is left out; the log says why.", m.load.Failed)
	}
	if m.load.Live && !ended {
		m.standstill(v, now, &all)
	}
	m.fates(&all)
	m.failures(&all)
	if m.recent.skipped > 0 && newest.Step-m.recent.skipped < 100 {
		all.add(bad, fmt.Sprintf("/step/%d", m.recent.skipped), "The gradient of step %d was not finite, and it changed nothing. A smaller trainer.lr or trainer.max_grad_norm may help; the step's batch shows what was in it.", m.recent.skipped)
	}
	if m.dlq.Count > 0 {
		all.fault("/sql", faults.Report{Fault: faults.DeadLetters, Why: fmt.Sprintf("%d records were refused and are in the table dlq; the newest: %s", m.dlq.Count, clipText(m.dlq.Newest, 300))})
	}
	return all
}

// fates says where groups end.
func (m *model) fates(all *list) {
	fates := m.recent.fates
	if len(fates) < enoughGroups {
		return
	}
	count := map[string]int{}
	for _, f := range fates {
		count[f]++
	}
	if count[schemas.FatePacked] == 0 {
		way, n := most(count)
		why := fmt.Sprintf("None of the newest %d groups is trained; %d ended as %s. %s", len(fates), n, way, meaning(way))
		link := "/rollouts?fate=filtered,stale,errored,timed_out,overlong"
		switch fate, _, _ := strings.Cut(way, ":"); fate {
		case schemas.FateFiltered, schemas.FateOverlong:
			all.fault(link, faults.Report{Fault: faults.NothingTrained, Why: strings.TrimSuffix(why, ".")})
		case schemas.FateStale:
			all.fault(link, faults.Report{Fault: faults.PolicyStale, Why: strings.TrimSuffix(why, ".")})
		default:
			all.add(bad, link, "%s", why)
		}
	} else if n := count[schemas.FateStale]; n*5 > len(fates) {
		all.add(odd, "/rollouts?fate=stale", "%d of the newest %d groups went stale. %s", n, len(fates), meaning(schemas.FateStale))
	}
}

// failures says how many rollouts fail.
func (m *model) failures(all *list) {
	n := len(m.recent.errors)
	if n < enoughGroups {
		return
	}
	count, failed := map[string]int{}, 0
	for _, e := range m.recent.errors {
		if e != "" && !strings.HasPrefix(e, "cancelled:") { // nobody waits for those any more: their groups have ended otherwise
			count[e]++
			failed++
		}
	}
	text, c := most(count)
	why := fmt.Sprintf("%d of the newest %d rollouts failed; %d times: %s", failed, n, c, clipText(text, 300))
	switch link := "/rollouts?error=any&eval=any"; {
	case all.has(faults.EnvFails):
		all.fault(link, faults.Report{Fault: faults.EnvFails})
	case all.has(faults.ModelSlow) && strings.HasPrefix(text, "model:"):
		all.fault(link, faults.Report{Fault: faults.ModelSlow})
	case failed*2 > n && strings.HasPrefix(text, "environment:"):
		all.fault(link, faults.Report{Fault: faults.EnvFails, Why: why})
	case failed*2 > n:
		all.add(bad, link, "%s", why)
	case failed*10 > n:
		all.add(odd, link, "%s", why)
	}
}

// standstill says what a run that goes on waits for.
func (m *model) standstill(v flow.View, now time.Time, all *list) {
	for _, s := range v.Stages {
		if s.Name == "envserver" && s.Instances > 0 && s.Quiet > quietServer.Seconds() && (s.Unread > 0 || s.Working > 0) {
			all.fault("", faults.Report{Fault: faults.EnvServerDead, Why: fmt.Sprintf("No environment server has written for %.0f s, and %d tasks are open", s.Quiet, s.Unread+s.Working)})
		}
	}
	if !m.recent.outcome.IsZero() && now.Sub(m.recent.outcome) > quietRun {
		all.fault("", faults.Report{Fault: faults.LearningStopped, Why: fmt.Sprintf("No group has ended for %v: %s", now.Sub(m.recent.outcome).Round(time.Second), waitsFor(v))})
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
