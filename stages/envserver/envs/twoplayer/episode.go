package twoplayer

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// The agents.
const (
	first  = "first"
	second = "second"
)

// episode is one negotiation.
type episode struct {
	cfg        Config
	task       task
	offer      *pile // what the agent that spoke last wants for itself; nil without one
	shares     map[string]pile
	replies    int
	unreadable int
}

// Agents implements [env.MultiAgent].
func (e *episode) Agents() []string { return []string{first, second} }

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	begin := "-"
	if e.cfg.Prompt == "full" {
		begin = "You begin."
	}
	return append(e.PromptOf(first), env.User(begin))
}

// PromptOf implements [env.MultiAgent].
func (e *episode) PromptOf(agent string) []env.Message {
	items, values := e.task.Items, e.values(agent)
	if e.cfg.Prompt == "compact" {
		return []env.Message{env.System(items.String() + " worth " + values.String())}
	}
	return []env.Message{env.System(fmt.Sprintf("You and somebody else divide %d apples, %d books and %d cups between you. To you an apple is worth %d, "+
		"a book %d and a cup %d; what they are worth to the other you do not know. You speak in turns, at most %d times together; without a deal "+
		"by then neither of you gets anything. End what you say with an offer, how many apples, books and cups you want for yourself, such as "+
		"<keep>1 0 1</keep>, or take what the other offered you with <deal/>.", items[0], items[1], items[2], values[0], values[1], values[2], e.cfg.Replies))}
}

func (e *episode) values(agent string) pile {
	if agent == first {
		return e.task.First
	}
	return e.task.Second
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.replies++
	other := first
	if reply.Agent == first {
		other = second
	}
	offer, deal := e.read(reply.Content)
	switch {
	case deal && e.offer != nil:
		e.shares = map[string]pile{other: *e.offer, reply.Agent: e.task.rest(*e.offer)}
		return env.Turn{Done: true}, nil
	case offer == nil:
		e.unreadable++
	}
	e.offer = offer
	return env.Turn{Agent: other, Messages: []env.Message{env.User(e.show(reply.Content))}, Done: e.replies == e.cfg.Replies}, nil
}

var (
	numbers = regexp.MustCompile(`^\s*(\d{1,4})\s+(\d{1,4})\s+(\d{1,4})\s*$`)
	move    = regexp.MustCompile(`<keep>([^<]*)</keep>|<deal/>`)
)

// read is what a reply says: an offer, or that the other's is accepted, or neither.
func (e *episode) read(reply string) (offer *pile, deal bool) {
	text := strings.TrimSpace(reply)
	if e.cfg.Prompt == "full" {
		moves := move.FindAllStringSubmatch(reply, -1)
		if len(moves) == 0 {
			return nil, false
		}
		last := moves[len(moves)-1]
		if text = last[1]; last[0] == "<deal/>" {
			text = "deal"
		}
	}
	if strings.EqualFold(text, "deal") {
		return nil, true
	}
	found := numbers.FindStringSubmatch(text)
	if found == nil {
		return nil, false
	}
	var p pile
	for k := range p {
		p[k], _ = strconv.Atoi(found[k+1]) // four digits at most
	}
	if !e.task.has(p) {
		return nil, false
	}
	return &p, false
}

// show is what the other agent sees of a reply.
func (e *episode) show(reply string) string {
	full := e.cfg.Prompt == "full"
	switch {
	case e.offer == nil && full:
		return fmt.Sprintf("The other said: %s\nThat is no offer.", reply)
	case e.offer == nil:
		return "-"
	}
	left := e.task.rest(*e.offer)
	if full {
		return fmt.Sprintf("The other said: %s\nThat leaves you %d apples, %d books and %d cups.", reply, left[0], left[1], left[2])
	}
	return left.String()
}

// String is the numbers with a space between.
func (p pile) String() string { return fmt.Sprintf("%d %d %d", p[0], p[1], p[2]) }

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	s := env.Score{
		Agents:  map[string]env.Rewards{},
		Metrics: map[string]float64{"deal": env.Bool(e.shares != nil), "replies": float64(e.replies), "unreadable": float64(e.unreadable)},
		Stop:    "no deal",
	}
	together := 0
	for _, agent := range e.Agents() {
		worth := e.shares[agent].worth(e.values(agent)) // nothing without a deal
		together += worth
		s.Agents[agent] = env.Rewards{"share": env.Value(float64(worth) / float64(e.task.Items.worth(e.values(agent))))}
	}
	s.Rewards = env.Rewards{"welfare": env.Value(float64(together) / float64(e.task.best()))}
	if e.shares != nil {
		s.Stop = "deal"
	}
	return s, nil
}
