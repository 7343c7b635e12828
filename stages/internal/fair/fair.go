// Package fair divides what is scarce among parties that share it: slots that are held for as long as work takes, or tokens
// that are spent. It knows no clock, and which party is next depends on the calls alone.
//
// Slots are divided by weighted max-min: the next one goes to a party that no other is a whole slot behind of, in parts of
// their shares. So parties that always have more to do hold slots in proportion to their shares, to within one, whatever
// their work takes; what one does not ask for the others have; and nothing that is held is ever taken back. Among parties
// that are equally far the one is next that was charged least so far, in parts of its share: that alone decides between
// parties that share a single slot, or spend (start-time fair queueing, Goyal et al. 1996; for the tokens of a language model
// it is the virtual token counter of Sheng et al., OSDI 2024, which needs no guess at how long an answer will be).
//
// A party that had nothing to do for a while has saved nothing up: it begins where those are that went on.
package fair

import "math"

// A Party is one of those that share. The zero value has no share; make one with NewParty.
type Party struct {
	share float64
	held  int
	spent float64 // in parts of the share
	seen  uint64  // the call of Next that found it waiting last
}

// NewParty makes a party of a share above 0, in any unit.
func NewParty(share float64) *Party { return &Party{share: share} }

// Share is the party's share.
func (p *Party) Share() float64 { return p.share }

// SetShare changes the share from now on. What was spent before is over: it is neither owed nor due by the new share.
func (p *Party) SetShare(share float64) { p.share = share }

// Held is how many slots it holds.
func (p *Party) Held() int { return p.held }

// Take gives a party slots, and charges it for them.
func (p *Party) Take(slots int) {
	p.held += slots
	p.Charge(slots)
}

// Give takes slots back.
func (p *Party) Give(slots int) { p.held -= slots }

// Charge notes that the party has spent something; what is given back is negative.
func (p *Party) Charge(n int) { p.spent += float64(n) / p.share }

// A Division is one thing that is shared. The zero value is ready.
type Division struct {
	calls uint64
	spent float64 // by the party that was next last
}

// Next is the party whose turn it is, of those that could use a slot now; nil if there are none. Parties that are equal in
// all come in the order in which they are given.
func (d *Division) Next(waiting []*Party) *Party {
	d.admit(waiting)
	behind := math.Inf(1) // how far the party is that has least, with one slot more
	for _, p := range waiting {
		behind = min(behind, float64(p.held+1)/p.share)
	}
	var next *Party
	for _, p := range waiting {
		if float64(p.held)/p.share < behind && (next == nil || p.spent < next.spent) {
			next = p
		}
	}
	if next != nil {
		d.spent = next.spent
	}
	return next
}

// admit brings parties that did not wait when the last one was chosen up to those that did.
func (d *Division) admit(waiting []*Party) {
	if len(waiting) == 0 {
		return
	}
	least := math.Inf(1)
	for _, p := range waiting {
		if p.seen == d.calls {
			least = min(least, p.spent)
		}
	}
	if math.IsInf(least, 1) {
		least = d.spent
	}
	for _, p := range waiting {
		if p.seen != d.calls {
			p.spent = max(p.spent, least)
		}
		p.seen = d.calls + 1
	}
	d.calls++
}
