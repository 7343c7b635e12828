package flow

import (
	"fmt"
	"math"
)

// Bottleneck says which stage the others wait for, and how that shows.
//
// A stage that leaves records unread is one whatever else is. Where the trainer hardly waits for batches it is the trainer:
// that is as it should be. Else rollouts are too slow: for want of places where tasks wait for one, or else for what a rollout
// spends its time on.
func (v View) Bottleneck(f Facts) Bottleneck {
	if f.Ended {
		return Bottleneck{}
	}
	if list := v.behind(); len(list) > 0 {
		s := list[0]
		return Bottleneck{s.Name, fmt.Sprintf("%d records wait for the %s, which reads %.0f a second.", s.Unread, s.Name, s.Rate)}
	}
	if math.IsNaN(f.TrainerWait) {
		return Bottleneck{}
	}
	const busy = 0.2
	if f.TrainerWait < busy {
		why := fmt.Sprintf("The trainer is busy %.0f %% of the time", 100*(1-f.TrainerWait))
		switch n := f.Packed - f.Trained - 1; {
		case n == 1:
			why += ", and a packed step waits for it"
		case n > 1:
			why += fmt.Sprintf(", and %d packed steps wait for it", n)
		}
		return Bottleneck{"trainer", why + ": rollouts come fast enough."}
	}
	waits := fmt.Sprintf("The trainer waits %.0f %% of the time for rollouts", 100*f.TrainerWait)
	servers := v.find("envserver")
	if idle := servers.Working - servers.Places; servers.Places > 0 && idle > 0 {
		return Bottleneck{"envserver", fmt.Sprintf("%s, and %d tasks wait for one of the %d places of the environment servers.", waits, idle, servers.Places)}
	}
	switch {
	case servers.Working == 0 && v.Topics["tasks"].Rate == 0:
		return Bottleneck{"emitter", waits + ", and no task is open."}
	case v.Generation > 0.5:
		return Bottleneck{"inference", fmt.Sprintf("%s, and these spend %.0f %% of theirs waiting for the model.", waits, 100*v.Generation)}
	case v.Generation > 0:
		return Bottleneck{"envserver", fmt.Sprintf("%s, and these spend %.0f %% of theirs in the environment.", waits, 100*(1-v.Generation))}
	}
	return Bottleneck{"envserver", waits + "."}
}
