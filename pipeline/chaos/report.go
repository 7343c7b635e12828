package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/prl-project/prl/pipeline/audit"
)

// A Report is what was done to a run and what came of it.
type Report struct {
	Config  Config
	Brokers string

	mu sync.Mutex
	// Faults that were carried out, by kind and stage (or broker, model, disk, topics).
	Faults map[Kind]map[string]int
	// Kills is the number of SIGKILLs, of stages and brokers.
	Kills int
	// Ends are processes that ended by themselves: fenced by a successor, or for an error that a restart is to cure.
	Fenced int
	Failed []string
	// Wedges are faults of Kafka itself, which a restart of the broker cured.
	Wedges []string
	// Probes are the times from a SIGKILL in an else calm pipeline until new work had passed through all of it, by stage.
	Probes map[string][]time.Duration
	// Passages are the same during all the other faults.
	Passages []time.Duration
	// Calm and Chaos are rollouts trained a second without faults and with them; Silence is the longest time without a
	// new policy version.
	Calm, Chaos float64
	Silence     time.Duration
	ChaosTime   time.Duration
	// Injected records, by kind, and requests of the model that were hit.
	Injected map[Kind]int
	Audit    *audit.Report
	// Violations of what must hold, beside the auditor's.
	Violations []string
}

func newReport(cfg Config) *Report {
	return &Report{Config: cfg, Faults: map[Kind]map[string]int{}, Probes: map[string][]time.Duration{}, Injected: map[Kind]int{}}
}

// fault counts one that was carried out.
func (r *Report) fault(k Kind, target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Faults[k] == nil {
		r.Faults[k] = map[string]int{}
	}
	r.Faults[k][stageOf(target)]++
}

func (r *Report) killed() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Kills++
}

func (r *Report) violate(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
}

func (r *Report) probed(title string, d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Probes[title] = append(r.Probes[title], d)
}

func (r *Report) passed(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Passages = append(r.Passages, d)
}

// ended takes the end of a process that nobody asked for.
func (r *Report) ended(slot string, e end) {
	if e.fatal() || strings.HasPrefix(e.last, "panic: ") || strings.HasPrefix(e.last, "fatal error: ") {
		r.violate("%s stopped for good: %s", slot, e.last)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if e.fenced() {
		r.Fenced++
		return
	}
	r.Failed = append(r.Failed, fmt.Sprintf("%s %v", slot, e))
}

// Violated is the number of violations, the auditor's included.
func (r *Report) Violated() int {
	n := len(r.Violations)
	if r.Audit != nil {
		n += int(r.Audit.Total())
	}
	return n
}

// String is the tables.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %v of faults on %s\n\n", r.Config.Seed, r.ChaosTime.Round(time.Second), r.Brokers)
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "fault\tcount\ton")
	total := 0
	for _, weight := range weights {
		on := r.Faults[weight.kind]
		n := 0
		var list []string
		for _, target := range slices.Sorted(maps.Keys(on)) {
			n += on[target]
			list = append(list, fmt.Sprintf("%s %d", target, on[target]))
		}
		if hit := r.Injected[weight.kind]; hit > 0 {
			list = append(list, fmt.Sprintf("(%d records or requests)", hit))
		}
		if n > 0 {
			fmt.Fprintf(w, "%s\t%d\t%s\n", weight.kind, n, strings.Join(list, ", "))
		}
		total += n
	}
	fmt.Fprintf(w, "all\t%d\t%d processes killed by SIGKILL, %d fenced, %d ended with an error and were started again, %d wedged brokers restarted\n", total, r.Kills, r.Fenced, len(r.Failed), len(r.Wedges))
	w.Flush() //nolint:errcheck // a strings.Builder takes everything

	fmt.Fprintf(&b, "\nrollouts trained a second: %.1f without faults, %.1f with (%.2f); longest time without a new policy version %.1f s\n",
		r.Calm, r.Chaos, r.ratio(), r.Silence.Seconds())
	if len(r.Probes) > 0 {
		w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(w, "\nSIGKILL of\tprobes\tmedian\tmax\t")
		for _, stage := range slices.Sorted(maps.Keys(r.Probes)) {
			m, worst := medianAndMax(r.Probes[stage])
			fmt.Fprintf(w, "%s\t%d\t%.1f s\t%.1f s\t\n", stage, len(r.Probes[stage]), m.Seconds(), worst.Seconds())
		}
		w.Flush() //nolint:errcheck // a strings.Builder takes everything
		fmt.Fprintln(&b, "until groups emitted after it were trained, from every partition of traces")
	}
	if len(r.Passages) > 0 {
		m, worst := medianAndMax(r.Passages)
		fmt.Fprintf(&b, "the same amid other faults: %d kills, median %.1f s, max %.1f s\n", len(r.Passages), m.Seconds(), worst.Seconds())
	}
	for _, list := range []struct {
		title string
		lines []string
	}{{"Kafka's own faults", r.Wedges}, {"ended with an error", r.Failed}} {
		for _, l := range list.lines[:min(len(list.lines), 10)] {
			fmt.Fprintf(&b, "%s: %s\n", list.title, firstLine(l))
		}
	}
	if r.Audit != nil {
		fmt.Fprintf(&b, "\n%v", r.Audit)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&b, "VIOLATION: %s\n", v)
	}
	return b.String()
}

func (r *Report) ratio() float64 {
	if r.Calm == 0 {
		return 0
	}
	return r.Chaos / r.Calm
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line[:min(len(line), 300)]
}

func medianAndMax(d []time.Duration) (median, most time.Duration) {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2], d[len(d)-1]
}
