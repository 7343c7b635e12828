package chaos

import (
	"slices"
	"strings"
	"testing"
	"time"
)

var everything = Targets{Slots: slotNames(), Brokers: 3}

func TestScheduleIsTheSeeds(t *testing.T) {
	a, b := Schedule(1, time.Hour, time.Second, everything), Schedule(1, time.Hour, time.Second, everything)
	if !slices.Equal(a, b) {
		t.Error("one seed gave two schedules")
	}
	if slices.Equal(a, Schedule(2, time.Hour, time.Second, everything)) {
		t.Error("two seeds gave one schedule")
	}
}

// TestScheduleIsComplete holds an hour to every kind of fault and every target.
func TestScheduleIsComplete(t *testing.T) {
	kinds, targets := map[Kind]int{}, map[string]int{}
	var last time.Duration
	for _, f := range Schedule(3, time.Hour, time.Second, everything) {
		kinds[f.Kind]++
		targets[f.Target]++
		if f.At < last || f.At >= time.Hour {
			t.Errorf("%v comes after %v", f, last)
		}
		last = f.At
	}
	for _, w := range weights {
		if kinds[w.kind] == 0 {
			t.Errorf("no %q in an hour", w.kind)
		}
	}
	for _, s := range append(slotNames(), "broker-0", "broker-1", "broker-2", "model", "disk", "topics") {
		if targets[s] == 0 {
			t.Errorf("nothing is done to %s in an hour", s)
		}
	}
}

// TestScheduleLeavesAQuorum holds brokers to one fault at a time.
func TestScheduleLeavesAQuorum(t *testing.T) {
	var until time.Duration
	for _, f := range Schedule(4, time.Hour, 100*time.Millisecond, everything) {
		if !strings.HasPrefix(f.Target, "broker-") {
			continue
		}
		if f.At < until {
			t.Errorf("%v, while another has a fault until %v", f, until)
		}
		until = f.At + f.For
	}
	if until == 0 {
		t.Error("no broker had a fault")
	}
}

// TestScheduleSparesAnEmbeddedBroker: its kills are excepted from what must hold.
func TestScheduleSparesAnEmbeddedBroker(t *testing.T) {
	for _, f := range Schedule(5, time.Hour, time.Second, Targets{Slots: slotNames()}) {
		if strings.HasPrefix(string(f.Kind), "broker") {
			t.Errorf("%v on an embedded broker", f)
		}
	}
}
