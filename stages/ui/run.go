package ui

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/flow"
	"github.com/prl-project/prl/stages/ui/history"
	"github.com/prl-project/prl/stages/ui/index"
	"github.com/prl-project/prl/stages/ui/series"
)

// runAnswer is a run for the page.
type runAnswer struct {
	Run      string    `json:"run"`
	MaxSteps int64     `json:"max_steps"`
	Now      time.Time `json:"now"`
	series.View
	Loading  Loading     `json:"loading"`
	Notices  []Notice    `json:"notices"`
	Rollouts int         `json:"rollouts"`
	Names    index.Names `json:"names"`
}

func (u *UI) getRun(r *http.Request) (any, error) {
	points := 600
	if s := r.URL.Query().Get("points"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n < 2 || n > 20_000 {
			return nil, badRequest("points=%s: want 2 to 20000", s)
		}
		points = n
	}
	if name := r.URL.Query().Get("run"); name != "" && name != u.rt.Run.Name {
		run, err := u.others.get(r.Context(), u.options, name)
		if err != nil {
			return nil, err
		}
		return runAnswer{Run: name, Now: u.now(), View: run.View(points), Notices: []Notice{}}, nil
	}
	names := u.model.rollouts.Names()
	a := runAnswer{Run: u.rt.Run.Name, MaxSteps: u.options.MaxSteps, Now: u.now(), Rollouts: u.model.rollouts.Len(), Names: names}
	u.model.locked(func() {
		a.View, a.Loading = u.model.run.View(points), u.model.load
	})
	a.Notices = u.notices()
	return a, nil
}

func (u *UI) getFlow(*http.Request) (any, error) { return u.flowView(), nil }

// trainerSteps are those over which it is told how busy the trainer is.
const trainerSteps = 5

func (u *UI) flowView() (v flow.View) {
	u.model.locked(func() {
		v = u.model.meter.View(u.now())
		f := flow.Facts{TrainerWait: math.NaN(), Packed: u.model.run.Packed()}
		if wait, ok := u.model.run.Last("trainer", "wait_share", trainerSteps); ok {
			f.TrainerWait = wait
		}
		if newest, ok := u.model.run.Newest(); ok {
			f.Trained, f.Ended = newest.Step, newest.Final
		}
		f.Ended = f.Ended || !u.model.load.Live
		v.Slow = v.Bottleneck(f)
	})
	return v
}

func (u *UI) getRuns(*http.Request) (any, error) {
	names := []string{}
	entries, err := os.ReadDir(u.options.Runs)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, e := range entries {
		if info, err := os.Stat(u.options.parquetOf(e.Name())); pipeline.ValidName(e.Name()) && err == nil && info.IsDir() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return map[string]any{"run": u.rt.Run.Name, "runs": names}, nil
}

// otherRuns keeps the curves of the run that this one was compared with last.
type otherRuns struct {
	dir string

	mu    sync.Mutex
	name  string
	files int
	at    time.Time // of the newest file
	run   *series.Run
}

func (o *otherRuns) get(ctx context.Context, options Options, name string) (*series.Run, error) {
	if !pipeline.ValidName(name) {
		return nil, badRequest("run=%q is no name of a run", name)
	}
	if info, err := os.Stat(options.parquetOf(name)); err != nil || !info.IsDir() {
		return nil, notFound("there are no files of run %s in %s", name, options.Runs)
	}
	files := history.New(options.parquetOf(name))
	var all []sink.File
	for _, topic := range []string{pipeline.TopicPolicies, pipeline.TopicEvals, pipeline.TopicMetrics, pipeline.TopicOutcomes} {
		list, err := files.List(topic)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	var newest time.Time
	for _, f := range all {
		if f.Time.After(newest) {
			newest = f.Time
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.name == name && o.files == len(all) && o.at.Equal(newest) {
		return o.run, nil
	}
	run := series.New()
	for _, f := range all {
		if err := feedFile(ctx, run, f); err != nil {
			return nil, err
		}
	}
	o.name, o.files, o.at, o.run = name, len(all), newest, run
	return run, nil
}

// feedFile gives the records of a file to curves.
func feedFile(ctx context.Context, run *series.Run, f sink.File) error {
	switch f.Topic {
	case pipeline.TopicOutcomes:
		outcomes, err := history.Outcomes(f, 0)
		run.Outcomes(outcomes)
		return err
	case pipeline.TopicMetrics:
		points, err := history.Metrics(f)
		for _, p := range points {
			run.Metric(p)
		}
		return err
	}
	records, err := history.Records(ctx, f)
	for _, r := range records {
		switch v := r.(type) {
		case *schemas.EvalResult:
			run.Eval(v)
		case *schemas.PolicyVersion:
			run.Policy(v)
		default:
			return fmt.Errorf("%s holds a %s", f.Path, r.SchemaName())
		}
	}
	return err
}
