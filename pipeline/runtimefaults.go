package pipeline

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

const (
	// faultName is the name of the points of the topic metrics that tell of faults: 1 while there is one, 0 when it is over.
	faultName = "fault"
	// FaultsRepeated is how often a process that lives tells of the faults it has.
	FaultsRepeated = 30 * time.Second
	// faultsRetried is how long it waits where the brokers did not take them.
	faultsRetried = 2 * time.Second
	// lastWords is how long a process that ends waits for the brokers to take what it has to say.
	lastWords = 3 * time.Second
	// mostWhy bounds what is told of an error, in bytes.
	mostWhy = 2 << 10
)

// A FaultKeeper is a core that knows of faults: all it has of the kinds it looks for, of which it is asked once a second. As
// with counts, no result may depend on it.
type FaultKeeper interface {
	Faults() (kinds []faults.Fault, has []faults.Report)
}

// OpenFaults gives the process a desk for its faults: what is raised there is logged, is in the metric prl_stage_fault_active, and
// is told by TellFaults. A Runtime without one only logs them.
func (rt *Runtime) OpenFaults() {
	rt.untold = &untold{list: map[string]faults.Report{}, wake: make(chan struct{}, 1)}
	rt.Faults = faults.NewDesk(rt.Log, time.Now, func(r faults.Report) { rt.untold.add(r) })
	if rt.Registry != nil {
		rt.Registry.MustRegister(NewFaultGauge("prl_stage_fault_active", "1 while a stage of this process has a fault; not there without.", rt.Faults.Active))
	}
	rt.watch = &brokerWatch{rt: rt, now: time.Now}
}

// Fault says that a stage has a fault, as often as it is noticed. about is empty, or which of its kind (an environment).
func (rt *Runtime) Fault(stage string, f faults.Fault, about string, why error) {
	r := faults.Report{Fault: f, Stage: stage, About: about, Why: clipped(why)}
	if rt.Faults == nil {
		rt.Log.Error(f.Says, "fault", f.Name, "stage", stage, "about", about, "do", f.Do, "error", why)
		return
	}
	rt.Faults.Raise(r)
}

// FaultSeen says that something has happened that shows a fault, which is over when nothing of it was seen for so long.
func (rt *Runtime) FaultSeen(stage string, f faults.Fault, about string, why error, lasts time.Duration) {
	rt.Faults.Note(faults.Report{Fault: f, Stage: stage, About: about, Why: clipped(why)}, lasts)
}

// Mended says that a stage does not have a fault, as often as that is seen.
func (rt *Runtime) Mended(stage string, f faults.Fault, about string) {
	rt.Faults.Clear(f, stage, about)
}

// Ended says with which error a stage has ended; nil and a lost name are no fault.
func (rt *Runtime) Ended(stage string, err error) {
	if err == nil || rt.Faults == nil || errors.Is(err, context.Canceled) || errors.Is(err, ErrFenced) {
		return
	}
	f := faults.StageFailed
	shown, ok := errors.AsType[*faults.Error](err)
	switch {
	case ok:
		f = shown.Fault
	case Refused(err):
		f = faults.NotAuthorized
	case NoRoom(err):
		f = faults.DiskFull
	}
	rt.Faults.Raise(faults.Report{Fault: f, Stage: stage, Why: clipped(err), Ended: true})
}

// Refused reports whether an error is of rights, or of who one is.
func Refused(err error) bool {
	for _, e := range []error{
		kerr.TopicAuthorizationFailed, kerr.GroupAuthorizationFailed, kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.SaslAuthenticationFailed,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// NoRoom reports whether an error is of a disk that is full. What a library or another process says of one counts, too.
func NoRoom(err error) bool {
	return err != nil && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || strings.Contains(err.Error(), syscall.ENOSPC.Error()))
}

// Wrote says how the writing of files of a stage went: DiskFull while its disk has no room. Other errors say nothing of that.
func (rt *Runtime) Wrote(stage string, err error) {
	switch {
	case err == nil:
		rt.Mended(stage, faults.DiskFull, "")
	case NoRoom(err):
		rt.Fault(stage, faults.DiskFull, "", err)
	}
}

func clipped(err error) string {
	if err == nil {
		return ""
	}
	why := strings.ToValidUTF8(err.Error(), "�")
	if len(why) > mostWhy {
		why = strings.ToValidUTF8(why[:mostWhy], "") + "…"
	}
	return why
}

// keepFaults asks cores for theirs, once a second.
func (p *Processor) keepFaults(now time.Time) {
	if p.rt.Faults == nil || now.Sub(p.faultsAsked).Abs() < time.Second {
		return
	}
	p.faultsAsked = now
	var all []faults.Report
	for _, u := range p.owned() {
		if core, ok := u.core.(FaultKeeper); ok {
			kinds, has := core.Faults()
			p.faultKinds, all = kinds, append(all, has...)
		}
	}
	if p.faultKinds != nil { // without a core of this process there are none: the partitions are another instance's
		p.rt.Faults.Hold(p.cfg.Stage, p.faultKinds, all)
	}
}

// untold is what of the faults has changed since it was told, by what the reports are of.
type untold struct {
	mu   sync.Mutex
	list map[string]faults.Report
	wake chan struct{} // of capacity 1
}

func (u *untold) add(reports ...faults.Report) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range reports {
		u.list[strings.Join([]string{r.Stage, r.Fault.Name, r.About}, "\x00")] = r
	}
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// take gives what is untold, what takes back all of a stage first.
func (u *untold) take() (reports []faults.Report) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, key := range slices.Sorted(maps.Keys(u.list)) {
		reports = append(reports, u.list[key])
		delete(u.list, key)
	}
	return reports
}

// TellFaults writes the faults of the process to the topic metrics, as they come, every FaultsRepeated while they last, and when
// they are over, until ctx ends; then what is left, under a deadline. So they are seen on pages in other processes, and after this
// one has ended. It begins by taking back what a predecessor of this name has left of a stage, empty for all stages. Nothing
// depends on it: what the brokers do not take is told when they do.
func (rt *Runtime) TellFaults(ctx context.Context, stage string) {
	if rt.Faults == nil {
		return
	}
	rt.untold.add(faults.Report{Stage: stage, Over: true})
	repeat := time.NewTicker(FaultsRepeated)
	defer repeat.Stop()
	var again <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			for _, r := range rt.Faults.Active() { // nobody is left to take them back
				if r.Over = !r.Ended; r.Over {
					rt.untold.add(r)
				}
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWords)
			defer cancel()
			rt.tell(last)
			return
		case <-rt.untold.wake:
		case <-again:
		case <-repeat.C:
			rt.untold.add(rt.Faults.Active()...)
		}
		if again = nil; !rt.tell(ctx) {
			again = time.After(faultsRetried)
		}
	}
}

// tell writes what has changed; false where it is to be tried again.
func (rt *Runtime) tell(ctx context.Context) bool {
	reports := rt.untold.take()
	if len(reports) == 0 {
		return true
	}
	// Written without a producer's id, it asks for no right but to write the topic. What comes twice changes nothing.
	cl, err := rt.Client(kgo.DisableIdempotentWrite(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err == nil {
		defer cl.Close()
		ctx, cancel := context.WithTimeout(ctx, requestDeadline/2)
		defer cancel()
		var recs []*kgo.Record
		for _, r := range reports {
			var rec *kgo.Record
			if rec, err = rt.Encode(ctx, Emission{TopicMetrics, AutoPartition, rt.faultPoint(r)}); err != nil {
				break
			}
			recs = append(recs, rec)
		}
		if err == nil {
			err = cl.ProduceSync(ctx, recs...).FirstErr()
		}
	}
	switch {
	case err == nil:
		return true
	case Refused(err):
		rt.Log.Warn("faults cannot be told to the page of the run", "error", Denied(err, WriteTopic(rt.TopicName(TopicMetrics))))
		return true
	}
	rt.Log.Debug("faults are told again", "error", err)
	rt.untold.readd(reports)
	return false
}

// readd puts reports back, unless there are newer ones.
func (u *untold) readd(reports []faults.Report) {
	newer := u.take()
	u.add(slices.Concat(reports, newer)...)
}

func (rt *Runtime) faultPoint(r faults.Report) *schemas.MetricPoint {
	p := &schemas.MetricPoint{Name: faultName, Stage: r.Stage, Instance: rt.Instance, Value: 1, TimeMs: time.Now().UnixMilli(),
		Labels: map[string]string{"fault": r.Fault.Name, "why": r.Why}}
	if r.Over {
		p.Value = 0
	}
	if r.About != "" {
		p.Labels["about"] = r.About
	}
	if r.Ended {
		p.Labels["ended"] = "true"
	}
	return p
}

// FaultOf reads what TellFaults has written: of which instance, and when. A report of no fault takes back all of its stage.
// Faults that nobody knows are none.
func FaultOf(p *schemas.MetricPoint) (r faults.Report, instance string, at time.Time, ok bool) {
	if p.Name != faultName {
		return r, "", at, false
	}
	f, ok := faults.Named(p.Labels["fault"])
	ok = ok || p.Labels["fault"] == "" && p.Value == 0
	return faults.Report{Fault: f, Stage: p.Stage, About: p.Labels["about"], Why: p.Labels["why"], Ended: p.Labels["ended"] == "true", Over: p.Value == 0},
		p.Instance, time.UnixMilli(p.TimeMs), ok
}

// NewFaultGauge is 1 for each fault that active gives.
func NewFaultGauge(name, help string, active func() []faults.Report) *Gauges {
	return NewGauges(name, help, []string{"stage", "fault", "about"}, func(set func(value float64, labels ...string)) {
		type labels struct{ stage, fault, about string }
		seen := map[labels]bool{}
		for _, r := range active() {
			if l := (labels{r.Stage, r.Fault.Name, r.About}); !seen[l] {
				seen[l] = true
				set(1, l.stage, l.fault, l.about)
			}
		}
	})
}
