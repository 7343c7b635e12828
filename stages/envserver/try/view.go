package try

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/internal/progress"
)

// A view prints rollouts and what they come to.
type view struct {
	printer
	run     *Run
	side    *printer
	bar     *progress.Printer
	results []*Result
	failed  int
}

func newView(r *Run, out, side io.Writer) *view {
	v := &view{printer: printer{out: out}, run: r, side: &printer{out: side}}
	switch out.(type) {
	case *progress.Terminal: // rollouts scroll by above it
		v.bar = progress.NewPrinter(out)
	default:
		v.bar = progress.NewPrinter(side)
	}
	return v
}

// figures is where the summary goes.
func (v *view) figures() *printer {
	if v.run.JSON {
		return v.side
	}
	return &v.printer
}

func (v *view) begin() {
	r, info := v.run, v.run.Env.Info()
	v.figures().printf("%s %s, %d of its %d tasks of split %s from %d on: %d rollouts by %s at %s, %d at once, temperature %g\n", info.Name, info.Version,
		min(r.Rollouts, info.Tasks(r.Tasks.Split)), info.Tasks(r.Tasks.Split), r.Tasks.Split, r.Tasks.First, r.Rollouts, r.server.Model, r.client.base,
		min(r.Parallel, r.Rollouts), r.Sampling.Temperature)
	if _, ok := r.Env.(env.GroupScorer); ok {
		v.figures().printf("In a run this environment compares the rollouts of a group; here each is scored by itself.\n")
	}
}

// add prints a rollout.
func (v *view) add(res *Result) {
	v.results = append(v.results, res)
	if res.Error != nil {
		v.failed++
	}
	if v.run.JSON {
		line, err := json.Marshal(res)
		if err != nil && v.err == nil {
			v.err = err
		}
		v.printf("%s\n", line)
	} else {
		v.conversation(res)
	}
	note := "rollouts"
	if rewards := v.rewards(); len(rewards) > 0 {
		note += ", mean reward " + number(newFigure(rewards).mean)
	}
	if v.failed > 0 {
		note += fmt.Sprintf(", %d failed", v.failed)
	}
	v.bar.ShowBar(progress.Bar{Done: len(v.results), Total: v.run.Rollouts, Note: note}, time.Now())
}

// conversation is a rollout in few lines.
func (v *view) conversation(res *Result) {
	v.printf("\n── %d of %d: rollout %d, task %d of %s, seed %d ──\n", len(v.results), v.run.Rollouts, res.Rollout, res.TaskIndex, res.Split, res.Seed)
	if res.Task != nil {
		v.labelled("task", short(string(res.Task), 400))
	}
	v.agent = ""
	for _, m := range res.Messages {
		if m.Reasoning != "" {
			v.labelled("(thinks)", short(m.Reasoning, longest))
		}
		m.Content = short(m.Content, longest)
		v.messages([]env.Message{m.Message})
	}
	if res.Error != nil {
		v.labelled("FAILED", res.Error.Type+": "+res.Error.Message)
		return
	}
	parts := make([]string, 0, len(res.Rewards))
	for _, name := range slices.Sorted(maps.Keys(res.Rewards)) {
		value := "none"
		if p := res.Rewards[name]; p != nil {
			value = number(*p)
		}
		if w := res.weights[name]; w != 1 {
			value += " × " + number(w)
		}
		parts = append(parts, name+" "+value)
	}
	ended := res.StopReason
	if res.Truncated {
		ended += " (truncated)"
	}
	for _, agent := range slices.Sorted(maps.Keys(res.Agents)) {
		v.labelled("reward of", agent+" "+optional(res.Agents[agent].Reward))
	}
	v.labelled("reward", fmt.Sprintf("%s = %s; ended: %s; %d replies, %.1f s", optional(res.Reward), strings.Join(parts, " + "), ended, res.Replies, res.Seconds))
}

// longest is how many characters of a message are shown.
const longest = 800

// short is the beginning of a text that has more characters, or more than a dozen lines.
func short(text string, most int) string {
	const mostLines = 12
	cut := text
	if lines := strings.SplitAfterN(cut, "\n", mostLines+1); len(lines) > mostLines {
		cut = strings.Join(lines[:mostLines], "")
	}
	if runes := []rune(cut); len(runes) > most {
		cut = string(runes[:most])
	}
	if len(cut) == len(text) || strings.TrimSpace(text[len(cut):]) == "" {
		return text
	}
	return fmt.Sprintf("%s … (%d characters)", strings.TrimRight(cut, "\n"), utf8.RuneCountInString(text))
}

// rewards are those of the rollouts that have one.
func (v *view) rewards() (values []float64) {
	for _, res := range v.results {
		if res.Reward != nil {
			values = append(values, *res.Reward)
		}
	}
	return values
}

// A figure is a mean over rollouts.
type figure struct {
	n            int
	mean, stderr float64 // stderr is the standard error of the mean; 0 of less than two
}

func newFigure(values []float64) figure {
	f := figure{n: len(values)}
	if f.n == 0 {
		return f
	}
	for _, x := range values {
		f.mean += x / float64(f.n)
	}
	if f.n > 1 {
		var squares float64
		for _, x := range values {
			squares += (x - f.mean) * (x - f.mean)
		}
		f.stderr = math.Sqrt(squares / float64(f.n-1) / float64(f.n))
	}
	return f
}

// String is the mean with its standard error.
func (f figure) String() string {
	switch f.n {
	case 0:
		return "none"
	case 1:
		return fmt.Sprintf("%.4f", f.mean)
	}
	return fmt.Sprintf("%.4f ± %.4f", f.mean, f.stderr)
}
