package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// fencedDeadline is how long a zombie may live after it was woken: until it next speaks to the brokers.
const fencedDeadline = 60 * time.Second

// probe kills every stage alone, waits until new work has passed through all of the pipeline, and takes the time: once
// with the process started again at once, and, where others of the stage stand by, once without.
func (w *world) probe(ctx context.Context) {
	for round := range w.cfg.Probes {
		for _, m := range fleet {
			w.probeSlot(ctx, m.stage, w.victim(m.stage, round), false)
			if m.count > 1 {
				w.probeSlot(ctx, m.stage+", not restarted", w.victim(m.stage, round), true)
			}
		}
	}
}

// victim is the slot of a stage that did its work last, so that those who stand by are not killed in its place. Where
// all of them work they take turns.
func (w *world) victim(stage string, round int) *slot {
	if s := w.slots[w.watch.active(stage)]; s != nil && stage != "envserver" && stage != "scorer" {
		return s
	}
	var of []*slot
	for _, name := range slotNames() {
		if stageOf(name) == stage {
			of = append(of, w.slots[name])
		}
	}
	return of[round%len(of)]
}

func (w *world) probeSlot(ctx context.Context, title string, s *slot, gone bool) {
	s.hold(gone)
	defer s.hold(false)
	if ctx.Err() != nil || !s.kill() {
		return
	}
	p := w.watch.pass()
	kind := Kill
	if gone {
		kind = Absence
	}
	w.report.fault(kind, s.name)
	select {
	case <-p.done:
		w.say("SIGKILL of %s (%s): new work was trained after %.1f s", s.name, title, p.took.Seconds())
		w.report.probed(title, p.took)
	case <-time.After(probeDeadline):
		w.report.violate("no new work was trained within %v of a SIGKILL of %s alone (%s)", probeDeadline, s.name, title)
	case <-ctx.Done():
	}
}

// chaos carries out the schedule.
func (w *world) chaos(ctx context.Context) {
	faults := Schedule(w.cfg.Seed, w.cfg.Chaos, w.cfg.Every, Targets{Slots: slotNames(), Brokers: w.brokers.nodes()})
	w.say("chaos for %v: %d faults", w.cfg.Chaos, len(faults))
	began := time.Now()
	for _, f := range faults {
		if !w.await(ctx, time.Until(began.Add(f.At)), func() bool { return w.stalled(began) }) && ctx.Err() != nil {
			break
		}
		if w.stalled(began) {
			break
		}
		w.busy.Go(func() {
			w.say("%v", f)
			if err := w.carryOut(ctx, f); err != nil && ctx.Err() == nil {
				w.report.violate("%v: %v", f, err)
			}
		})
	}
	if !w.stalled(began) {
		w.await(ctx, time.Until(began.Add(w.cfg.Chaos)), func() bool { return false })
	}
	w.busy.Wait()
	now := time.Now()
	w.report.ChaosTime, w.report.Chaos = now.Sub(began), w.rollouts(began, now)
	_, w.report.Silence = w.watch.rate(began, now)
	if w.report.Silence > stall {
		w.report.violate("no policy version was published for %v", w.report.Silence.Round(time.Second))
	}
}

// stalled reports whether the pipeline stands still for too long.
func (w *world) stalled(began time.Time) bool {
	now := time.Now()
	from := now.Add(-2 * stall)
	if from.Before(began) {
		from = began
	}
	if now.Sub(from) < stall {
		return false
	}
	_, silence := w.watch.rate(from, now)
	return silence > stall
}

// carryOut does what a fault says and returns when it is over. An error is a violation: the pipeline has not borne it.
func (w *world) carryOut(ctx context.Context, f Fault) error {
	rng := rand.New(rand.NewPCG(f.Seed, 1))
	s := w.slots[f.Target]
	switch f.Kind {
	case Kill, Crash:
		if f.Kind == Kill && !s.kill() {
			return nil // it has just ended by itself
		}
		if f.Kind == Crash {
			of := places[stageOf(f.Target)]
			s.crashNext(of[rng.IntN(len(of))], 1+rng.IntN(8))
		}
		w.time()
	case Absence:
		s.hold(true)
		defer s.hold(false)
		if !s.kill() {
			return nil
		}
		time.Sleep(f.For)
	case Nap, Sleep:
		s.nap(f.For)
	case Zombie:
		return w.zombie(f, s)
	case Restart:
		if err := s.restart(); err != nil {
			return err
		}
	case Scale:
		return w.scale(f, s)
	case BrokerKill, BrokerNap:
		return w.breakBroker(ctx, f)
	case ModelSlow, ModelDrop, ModelCut, ModelRefuse:
		w.proxy.set(f.Kind, f.Seed)
		time.Sleep(f.For)
		w.proxy.set("", 0)
	case DiskSlow, DiskFull:
		if err := w.disk.set(f.Kind); err != nil {
			return err
		}
		time.Sleep(f.For)
		if err := w.disk.clear(); err != nil {
			return err
		}
	default:
		if err := w.inject.inject(ctx, f.Kind, f.Seed); err != nil {
			return err
		}
	}
	w.report.fault(f.Kind, f.Target)
	return nil
}

// time takes how long it is until new work has passed through the pipeline, amid whatever comes.
func (w *world) time() {
	p := w.watch.pass()
	go func() {
		select {
		case <-p.done:
			w.report.passed(p.took)
		case <-time.After(stall): // the pipeline's longest silence tells
		}
	}()
}

// zombie wakes a process that has a successor of the same name: it must go.
func (w *world) zombie(f Fault, s *slot) error {
	old, err := s.replace(f.For)
	if err != nil || old == nil {
		return err
	}
	if !old.ended(fencedDeadline) {
		old.stop(9)
		return fmt.Errorf("the zombie still lives %v after it was woken, beside a process of its name", fencedDeadline)
	}
	w.report.fault(f.Kind, f.Target)
	return nil
}

// scale adds an instance of a stage for a while and takes it away for good.
func (w *world) scale(f Fault, s *slot) error {
	w.mu.Lock()
	w.extra++
	name := fmt.Sprintf("%s-extra%d", stageOf(s.name), w.extra)
	w.mu.Unlock()
	p, err := w.stage(name, nil, "--leave")
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		w.told(name, p)
		return nil
	case <-time.After(f.For):
	}
	err = stopInOrder(name, p)
	w.told(name, p)
	w.report.fault(f.Kind, f.Target)
	return err
}

func (w *world) breakBroker(ctx context.Context, f Fault) error {
	_, number, _ := strings.Cut(f.Target, "-")
	node, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("which broker is %s: %w", f.Target, err)
	}
	if f.Kind == BrokerNap {
		err = w.brokers.nap(node, f.For)
	} else if err = w.brokers.kill(ctx, node, f.For); err == nil {
		w.report.killed()
	}
	w.report.fault(f.Kind, f.Target)
	return err
}
