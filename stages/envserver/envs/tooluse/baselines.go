package tooluse

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	randomGames = 1000
	randomCalls = 5
)

// Baselines implements [env.Baseliner]. "random" makes five random calls of tools that change something, with ids that may exist
// (the mean of 1,000 seeded games). "silent" makes none: 0, which is exact.
func (t *ToolUse) Baselines(split env.Split) map[string]float64 {
	random, ok := t.random[split]
	if !ok {
		return nil
	}
	return map[string]float64{"random": random(), "silent": 0}
}

func (t *ToolUse) measure(split env.Split) float64 {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(1, 0))
	var sum float64
	for i := range randomGames {
		made, err := t.draw(split, i%t.Info().Tasks(split))
		if err != nil {
			return 0 // a space of more than 10⁶ requests falls to both splits
		}
		e := &episode{cfg: t.cfg, task: made, shop: made.Shop.copied(), want: made.Shop.copied()}
		for _, g := range made.Goals {
			_ = e.want.do(g) // possible: it was made so
		}
		for range randomCalls {
			switch rng.IntN(3) { // refusals are part of it
			case 0:
				_, _ = e.PlaceOrder(ctx, OrderArgs{Product: fmt.Sprintf("P%d", 1+rng.IntN(t.cfg.Products)), Quantity: 1 + rng.IntN(3)})
			case 1:
				_, _ = e.CancelOrder(ctx, CancelArgs{Order: fmt.Sprintf("O%d", 1+rng.IntN(4))})
			case 2:
				_, _ = e.SetDelivery(ctx, DeliveryArgs{City: cities[rng.IntN(len(cities))], Express: rng.IntN(2) == 0})
			}
		}
		score, _ := e.Score(ctx) // never an error
		sum += *score.Rewards.Total()
	}
	return sum / randomGames
}
