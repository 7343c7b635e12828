package lm

import (
	"fmt"
	"math"
)

// Schedule is a learning rate over the steps of a run: a linear warm-up, then a fall to Final·Peak at the last step.
type Schedule struct {
	Peak   float64
	Warmup int     // steps; the first has Peak/Warmup
	Steps  int     // of the whole run
	Final  float64 // share of Peak at the last step and after it
	Kind   string  // "constant", "linear" or "cosine"
}

// Validate says what is wrong with the schedule.
func (s Schedule) Validate() error {
	switch {
	case !(s.Peak > 0 && s.Peak <= 1):
		return fmt.Errorf("learning rate = %g: must lie between 0 and 1", s.Peak)
	case s.Steps < 1 || s.Warmup < 0 || s.Warmup > s.Steps:
		return fmt.Errorf("warm-up of %d steps in %d: must lie between 0 and the number of steps, at least 1", s.Warmup, s.Steps)
	case !(s.Final >= 0 && s.Final <= 1):
		return fmt.Errorf("final share of the learning rate = %g: allowed are 0 to 1", s.Final)
	case s.Kind != "constant" && s.Kind != "linear" && s.Kind != "cosine":
		return fmt.Errorf("schedule = %q: allowed are constant, linear, cosine", s.Kind)
	}
	return nil
}

// At is the learning rate of a step; steps count from 1.
func (s Schedule) At(step int) float64 {
	if step <= s.Warmup {
		return s.Peak * float64(max(step, 1)) / float64(s.Warmup)
	}
	// done runs from 0 at the first step after the warm-up (or its peak) to 1 at the last step.
	done := 1.0
	if first := max(s.Warmup, 1); step < s.Steps {
		done = float64(step-first) / float64(s.Steps-first)
	}
	switch s.Kind {
	case "linear":
		return s.Peak * (1 - (1-s.Final)*done)
	case "cosine":
		return s.Peak * (s.Final + (1-s.Final)*(1+math.Cos(math.Pi*done))/2)
	}
	return s.Peak
}
