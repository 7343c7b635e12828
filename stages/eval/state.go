package eval

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/prl-project/prl/stages/internal/schedule"
)

// state is State, as JSON: a few bytes per tick in which a round emitted.
type state struct {
	Clock schedule.Clock `json:"clock"`
	Next  int64          `json:"next"`
	Evals []evalState    `json:"evals"`
}

type evalState struct {
	Name string `json:"name"`
	IDs  int64  `json:"ids"`
	Run  *round `json:"run,omitempty"`
}

// State holds what the clock did; what traces say is made again from the unfinished ones.
func (c *Core) State() ([]byte, error) {
	s := state{Clock: c.clock, Next: c.next}
	for _, e := range c.evals {
		s.Evals = append(s.Evals, evalState{e.name, e.ids, e.run})
	}
	s.Evals = append(s.Evals, c.gone...)
	return json.Marshal(s)
}

// restore reads what State wrote. An eval must stay in the configuration while it runs; its examples and k are then
// those it was begun with.
func (c *Core) restore(bytes []byte) error {
	var s state
	if err := json.Unmarshal(bytes, &s); err != nil {
		return err
	}
	c.clock, c.next = s.Clock, s.Next
	for _, saved := range s.Evals {
		i := slices.IndexFunc(c.evals, func(e *eval) bool { return e.name == saved.Name })
		if r := saved.Run; r != nil && (i < 0 || c.evals[i].cfg.Env != r.Env) {
			return fmt.Errorf("eval %s of version %d runs on %s: put [evals.%s] back as it was until it is done", saved.Name, r.Version, r.Env, saved.Name)
		}
		if i < 0 {
			c.gone = append(c.gone, saved)
			continue
		}
		e := c.evals[i]
		e.ids, e.run = saved.IDs, saved.Run
		if e.run == nil {
			continue
		}
		r := e.run
		for _, b := range r.Emitted {
			r.emitted += b.Count
		}
		if int64(r.emitted) != e.ids-r.First || r.Expired > r.emitted || r.emitted > r.Examples || r.Examples > maxExamples || r.K < 1 {
			return fmt.Errorf("eval %s: %d of %d examples emitted, ids %d to %d", saved.Name, r.emitted, r.Examples, r.First, e.ids)
		}
		r.examples, r.open = make([]example, r.Examples), r.emitted
		for i := range r.emitted {
			r.examples[i].emitted = true
		}
	}
	return nil
}
