package main

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// ruleFile is where the alerts are.
const ruleFile = "deploy/prometheus/alerts.yml"

// A scrape is what every part's /metrics said at one time, by series.
type scrape map[string]sampled

type sampled struct {
	value   float64
	counter bool
}

// scrape asks all parts, and others by their URL. One that does not answer has no series but up, as Prometheus would have it.
func (w *world) scrape(more map[string]string) scrape {
	w.t.Helper()
	urls := maps.Clone(more)
	if urls == nil {
		urls = map[string]string{}
	}
	for name, p := range w.parts {
		select {
		case <-p.done:
			urls[name] = ""
		default:
			urls[name] = p.metrics.URL
		}
	}
	all := scrape{}
	for name, url := range urls {
		target := fmt.Sprintf(`job="prl",instance=%q`, name)
		up := 0.0
		if text, err := body(url); err == nil {
			up = 1
			all.add(w.t, text, target)
		}
		all["up{"+target+"}"] = sampled{value: up}
	}
	return all
}

func body(url string) (string, error) {
	if url == "" {
		return "", fmt.Errorf("it does not run")
	}
	resp, err := http.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return string(text), err
}

// add takes the samples of an answer.
func (s scrape) add(t *testing.T, text, target string) {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		for _, m := range f.Metric {
			labels := target
			for _, l := range m.Label {
				labels += fmt.Sprintf(",%s=%q", l.GetName(), l.GetValue())
			}
			put := func(suffix, more string, v float64, counter bool) {
				s[name+suffix+"{"+labels+more+"}"] = sampled{v, counter}
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				put("", "", m.Counter.GetValue(), true)
			case dto.MetricType_GAUGE:
				put("", "", m.Gauge.GetValue(), false)
			case dto.MetricType_HISTOGRAM:
				put("_sum", "", m.Histogram.GetSampleSum(), true)
				put("_count", "", float64(m.Histogram.GetSampleCount()), true)
				for _, b := range m.Histogram.Bucket {
					put("_bucket", fmt.Sprintf(`,le="%v"`, b.GetUpperBound()), float64(b.GetCumulativeCount()), true)
				}
			}
		}
	}
}

// phases are the minutes of each phase that promtool is told of, in steps of 15 s: the run is healthy; a fault lasts ten minutes; it is
// being mended; and the run is healthy again, until what counts over half an hour has forgotten the fault.
var phases = [4]int{20, 10, 5, 40}

// Phases of which is said what fires at their ends.
const (
	phaseHealthy = iota
	phaseFault
	phaseMending
	phaseMended
)

// alerts holds the rules to the phases, one behind the other. Of each there is a scrape at its end, and one from before the first:
// counters grow evenly from one to the next, gauges are what they are at the end of the phase. With the fault the alerts that are named
// must fire and no others; without it none.
func alerts(t *testing.T, scrapes [len(phases) + 1]scrape, firing []string) {
	t.Helper()
	rules := filepath.Join(repository(t), ruleFile)
	promtool := filepath.Join(need.Validators(t, filepath.Join(repository(t), ".cache/validators")), "promtool")
	series := map[string]bool{}
	for _, s := range scrapes {
		for name := range s {
			series[name] = true
		}
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "rule_files: [%s]\nevaluation_interval: 15s\ntests:\n- interval: 15s\n  input_series:\n", rules)
	for _, name := range slices.Sorted(maps.Keys(series)) {
		var values []string
		for phase := range phases {
			values = append(values, phaseOf(scrapes[phase], scrapes[phase+1], name, 4*phases[phase]))
		}
		fmt.Fprintf(&b, "  - series: %s\n    values: %s\n", strconv.Quote(name), strconv.Quote(strings.Join(values, " ")))
	}
	b.WriteString("  promql_expr_test:\n")
	minutes := 0
	for phase, length := range phases {
		minutes += length
		names := []string{}
		switch phase {
		case phaseMending:
			continue
		case phaseFault:
			names = firing
		}
		fmt.Fprintf(&b, "  - expr: group by (alertname) (ALERTS{alertstate=\"firing\"})\n    eval_time: %dm\n    exp_samples:\n", minutes-1)
		for _, n := range names {
			fmt.Fprintf(&b, "    - labels: '{alertname=\"%s\"}'\n      value: 1\n", n)
		}
	}
	file := filepath.Join(t.TempDir(), "rules_test.yml")
	if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(promtool, "test", "rules", file).CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, tail(string(out), 4000))
		if keep := os.Getenv("PRL_TEST_KEEP"); keep != "" {
			_ = os.WriteFile(filepath.Join(keep, strings.ReplaceAll(t.Name(), "/", "-")+".yml"), b.Bytes(), 0o644)
		}
	}
}

// phaseOf is a series over one phase of so many steps, in the notation of promtool.
func phaseOf(from, to scrape, name string, steps int) string {
	end, there := to[name]
	switch begin, was := from[name]; {
	case !there && was:
		return fmt.Sprintf("stale _x%d", steps-1)
	case !there:
		return fmt.Sprintf("_x%d", steps)
	case !end.counter:
		return fmt.Sprintf("%vx%d", end.value, steps-1)
	case !was || begin.value > end.value: // it has begun anew
		return fmt.Sprintf("0+%vx%d", end.value/float64(steps), steps-1)
	default:
		return fmt.Sprintf("%v+%vx%d", begin.value, (end.value-begin.value)/float64(steps), steps-1)
	}
}
