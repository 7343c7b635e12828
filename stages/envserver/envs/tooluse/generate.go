package tooluse

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

var (
	kinds   = []string{"bowl", "chair", "clock", "desk", "hat", "lamp", "mug", "pen", "rug", "vase"}
	colours = []string{"black", "blue", "green", "red", "white", "yellow"}
	cities  = []string{"Accra", "Berlin", "Cairo", "Delhi", "Lima", "Oslo", "Porto", "Quito", "Riga", "Seoul", "Tunis", "Vienna"}
)

// draw makes a task.
func (t *ToolUse) draw(split env.Split, index int) (task, error) {
	what := fmt.Sprintf("tool-use of %d to %d goals, %d products", t.cfg.MinGoals, t.cfg.MaxGoals, t.cfg.Products)
	return env.Draw(what, split, index, t.cfg.EvalPercent, func(rng *rand.Rand) (task, string) {
		made := t.cfg.make(rng)
		return made, fmt.Sprintf("%s %+v", made.Request, made.Shop)
	})
}

// make is a shop, a customer with some open and shipped orders, and what this customer asks for. Each goal is about products of
// its own, and there is money for all of them.
func (c Config) make(rng *rand.Rand) task {
	var s shop
	for i, n := range rng.Perm(len(kinds) * len(colours))[:c.Products] {
		s.Products = append(s.Products, product{
			ID: fmt.Sprintf("P%d", i+1), Kind: kinds[n/len(colours)], Colour: colours[n%len(colours)], Price: 2 + rng.IntN(30), Stock: 3 + rng.IntN(6),
		})
	}
	s.City, s.Delivery = cities[rng.IntN(len(cities))], []string{"standard", "express"}[rng.IntN(2)]
	s.Balance = 1_000_000
	ordered := rng.Perm(c.Products)[:min(4, c.Products/2)]
	for i, n := range ordered {
		_, _ = s.buy(s.Products[n].ID, 1+rng.IntN(3)) // there are three of each at least
		if i%2 == 1 {
			s.Orders[i].Status = "shipped"
		}
	}
	t := task{Shop: s.copied()}
	t.Shop.Balance = rng.IntN(20)
	taken := map[string]bool{} // kinds that a goal is about, or that are on order
	for _, n := range ordered {
		taken[s.Products[n].Kind] = true
	}
	var asks []string
	goals := c.MinGoals + rng.IntN(c.MaxGoals-c.MinGoals+1)
	for tries := 0; len(t.Goals) < goals && tries < 1000; tries++ {
		g, ask, ok := t.Shop.goal(rng, taken, t.Goals)
		if ok {
			t.Goals, asks = append(t.Goals, g), append(asks, ask)
			t.Shop.Balance += g.Quantity * price(&s, g.Product)
		}
	}
	t.Request = "Please " + strings.Join(asks, ". Also ") + "."
	return t
}

func price(s *shop, id string) int {
	if p := s.product(id); p != nil {
		return p.Price
	}
	return 0
}

// goal is a random one that is possible beside those there are, and its words.
func (s *shop) goal(rng *rand.Rand, taken map[string]bool, others []goal) (g goal, ask string, ok bool) {
	p := s.Products[rng.IntN(len(s.Products))]
	switch rng.IntN(4) {
	case 0:
		if taken[p.Kind] {
			return g, "", false
		}
		taken[p.Kind] = true
		g = goal{Do: "buy", Product: p.ID, Quantity: 1 + rng.IntN(3)}
		return g, fmt.Sprintf("order %d of the %s %s", g.Quantity, p.Colour, p.Kind), true
	case 1:
		cheapest, ok := s.cheapest(p.Kind)
		if taken[p.Kind] || !ok {
			return g, "", false
		}
		taken[p.Kind] = true
		g = goal{Do: "cheapest", Product: cheapest.ID, Quantity: 1 + rng.IntN(2)}
		return g, fmt.Sprintf("order %d of the cheapest %s there is", g.Quantity, p.Kind), true
	case 2:
		if s.open()[p.ID] == 0 || slices.ContainsFunc(others, func(o goal) bool { return o.Product == p.ID }) {
			return g, "", false
		}
		return goal{Do: "cancel", Product: p.ID}, fmt.Sprintf("cancel my order of the %s %s", p.Colour, p.Kind), true
	default:
		g = goal{Do: "deliver", City: cities[rng.IntN(len(cities))], Delivery: []string{"standard", "express"}[rng.IntN(2)]}
		if g.City == s.City || slices.ContainsFunc(others, func(o goal) bool { return o.Do == "deliver" }) {
			return g, "", false
		}
		return g, fmt.Sprintf("send everything to %s by %s delivery", g.City, g.Delivery), true
	}
}

// cheapest is the product of a kind with the lowest price; false if there is one only, or two are as cheap.
func (s *shop) cheapest(kind string) (product, bool) {
	var fit []product
	for _, p := range s.Products {
		if p.Kind == kind {
			fit = append(fit, p)
		}
	}
	slices.SortFunc(fit, func(a, b product) int { return a.Price - b.Price })
	if len(fit) < 2 || fit[0].Price == fit[1].Price {
		return product{}, false
	}
	return fit[0], true
}
