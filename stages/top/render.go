package top

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/internal/progress"
	"github.com/prl-project/prl/stages/ui"
	"github.com/prl-project/prl/stages/ui/flow"
)

// noticeLines is how many lines of a terminal a notice may take.
const noticeLines = 4

// Ended reports whether nothing of the run can change any more.
func Ended(s ui.Sight) bool { return s.Final && s.Following && (s.Open == nil || s.Open.Groups == 0) }

// Table is the run as lines, however long.
func Table(s ui.Sight) string { return strings.Join(picture(s, 0), "\n") + "\n" }

// Screen is the run on a terminal of a size.
func Screen(s ui.Sight, width, height int) []string {
	lines := picture(s, width)
	if len(lines) > height {
		lines = append(lines[:height-1], fmt.Sprintf("… %d more lines; a higher window shows them", len(lines)-height+1))
	}
	for i, l := range lines {
		lines[i] = progress.Clip(l, width)
	}
	return lines
}

func picture(s ui.Sight, width int) []string {
	lines := progress.Wrap(head(s), width, 3)
	lines = append(lines, "")
	lines = append(lines, stages(s.Flow, width)...)
	if s.Flow.Slow.Why != "" {
		lines = append(lines, "")
		lines = append(lines, progress.Wrap("▶ "+s.Flow.Slow.Why, width, 2)...)
	}
	for _, n := range s.Notices {
		mark := "! "
		if n.Level == "bad" {
			mark = "!! "
		}
		lines = append(lines, "")
		lines = append(lines, progress.Wrap(mark+progress.Visible(n.Text), width, noticeLines)...)
	}
	lines = append(lines, "")
	lines = append(lines, learns(s, width)...)
	if len(s.Ends) > 0 {
		lines = append(lines, progress.Wrap(ends(s), width, 2)...)
	}
	return lines
}

// head says how far the run is.
func head(s ui.Sight) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	add("run %s", s.Run)
	switch {
	case s.Version == nil:
		add("no policy version yet")
	case s.Final && Ended(s):
		add("ended with version %d", *s.Version)
	case s.MaxSteps > 0:
		add("step %d of %d", s.Step, s.MaxSteps)
	default:
		add("step %d", s.Step)
	}
	if s.Version != nil && !Ended(s) {
		add("version %d", *s.Version)
		if s.Final {
			add("which is the final one")
		}
	}
	if missing := unannounced(s); len(missing) > 0 && !s.Final {
		add("waits for %s", progress.MissingEnvs(missing))
	}
	add("%s tokens/s", progress.Count(s.Flow.Tokens))
	if s.Open != nil {
		add("%s open (%s)", plural(s.Open.Groups, "group"), plural(s.Open.Rollouts, "rollout"))
	}
	if s.OffPolicy != nil {
		add("off-policy steps %.1f, at most %.0f", s.OffPolicy.Mean, s.OffPolicy.Max)
	}
	if !s.Following {
		add("NOT FOLLOWED")
	}
	return strings.Join(append(parts, s.Now.Format("15:04:05")), " · ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

func unannounced(s ui.Sight) (names []string) {
	for _, e := range s.Envs {
		if !e.Announced {
			names = append(names, e.Env)
		}
	}
	return names
}

// A column is one of the table of stages. Those at the end of keep go first where there is no room.
type column struct {
	title string
	of    func(flow.StageView) string
}

var columns = []column{
	{"PROCESSES", func(s flow.StageView) string { return number(s.Instances) }},
	{"LAG", lag},
	{"WORKING", working},
	{"RECORDS/S", rate},
	{"LAST HEARD", heard},
}

// keep are the columns by how much they tell.
var keep = []int{1, 3, 2, 0, 4}

// untold are the stages of which the topics say nothing; the trainer writes no state, but versions.
var untold = map[string]bool{"inference": true, "sink": true, "cleanup": true}

func lag(s flow.StageView) string {
	if untold[s.Name] {
		return "-"
	}
	return strconv.Itoa(s.Unread)
}

func working(s flow.StageView) string {
	switch {
	case s.Places > 0:
		return fmt.Sprintf("%d of %d", s.Working, s.Places)
	case s.Instances > 0:
		return strconv.Itoa(s.Working)
	}
	return "-"
}

func rate(s flow.StageView) string {
	switch {
	case untold[s.Name]:
		return "-"
	case s.Rate > 0 && s.Rate < 10:
		return fmt.Sprintf("%.2f", s.Rate)
	}
	return progress.Count(s.Rate)
}

func heard(s flow.StageView) string {
	if s.Instances == 0 {
		return "-"
	}
	return (time.Duration(s.Quiet) * time.Second).String() + " ago"
}

// number is a dash where there is none.
func number(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

// stages is the table of stages, with the columns for which there is room.
func stages(v flow.View, width int) []string {
	rows := [][]string{{"", "STAGE"}}
	for _, c := range columns {
		rows[0] = append(rows[0], c.title)
	}
	for _, s := range v.Stages {
		row := []string{" ", s.Name}
		if v.Slow.Stage == s.Name {
			row[0] = "▶"
		}
		for _, c := range columns {
			row = append(row, c.of(s))
		}
		rows = append(rows, row)
	}
	widths := make([]int, len(columns)+2)
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	room, shown := width-widths[0]-1-widths[1], make([]bool, len(columns))
	for _, c := range keep {
		if room -= 2 + widths[c+2]; width > 0 && room < 0 {
			break
		}
		shown[c] = true
	}
	lines := make([]string, len(rows))
	for i, row := range rows {
		l := fmt.Sprintf("%-*s %-*s", widths[0], row[0], widths[1], row[1])
		for k, cell := range row[2:] {
			if shown[k] {
				l += fmt.Sprintf("  %*s", widths[k+2], cell)
			}
		}
		lines[i] = strings.TrimRight(l, " ")
	}
	return lines
}

// learns is the reward of each environment and the newest evals.
func learns(s ui.Sight, width int) (lines []string) {
	longest, room := 3, 40 // for a curve
	for _, e := range s.Envs {
		longest = max(longest, len(e.Env))
	}
	for _, e := range s.Evals {
		longest = max(longest, len(e.Eval))
	}
	if width > 0 {
		room = max(10, min(room, width-longest-25))
	}
	for _, e := range s.Envs {
		reward, note := "-", "no rollout yet"
		switch {
		case !e.Announced && s.Version != nil:
			note = "no server has announced it"
		case e.Reward != nil:
			reward, note = fmt.Sprintf("%.3f", *e.Reward), progress.Spark(e.Curve, room)
		}
		lines = append(lines, fmt.Sprintf("  %-*s  reward %6s  %s", longest, e.Env, reward, note))
	}
	for _, e := range s.Evals {
		avg := "-"
		if e.Avg != nil && e.Stderr != nil {
			avg = progress.Interval(*e.Avg, *e.Stderr)
		}
		lines = append(lines, fmt.Sprintf("  %-*s  eval of version %d: avg@%d %s", longest, progress.Visible(e.Eval), e.Version, e.K, avg))
	}
	return lines
}

// ends says where the newest groups ended.
func ends(s ui.Sight) string {
	all, parts := int64(0), []string{}
	for _, n := range s.Ends {
		all += n
	}
	ways := slices.SortedFunc(maps.Keys(s.Ends), func(a, b string) int {
		if s.Ends[a] != s.Ends[b] {
			return int(s.Ends[b] - s.Ends[a])
		}
		return strings.Compare(a, b)
	})
	for _, way := range ways {
		parts = append(parts, fmt.Sprintf("%s %d", progress.Visible(way), s.Ends[way]))
	}
	return fmt.Sprintf("  of the newest %d groups: %s", all, strings.Join(parts, ", "))
}
