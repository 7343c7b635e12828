package twoplayer

import (
	"maps"
	"math/rand/v2"

	"github.com/prl-project/prl/stages/envserver/env"
)

const randomGames = 2000

// Baselines implements [env.Baseliner]: the welfare of two "random" players, who make any legal move (the mean of 2,000 seeded
// games).
func (p *TwoPlayer) Baselines(split env.Split) map[string]float64 {
	if baselines, ok := p.baselines[split]; ok {
		return maps.Clone(baselines())
	}
	return nil
}

func (p *TwoPlayer) measure(split env.Split) map[string]float64 {
	rng := rand.New(rand.NewPCG(1, 0))
	var sum float64
	for i := range randomGames {
		t, err := p.draw(split, i%p.Info().Tasks(split))
		if err != nil {
			return nil // no task falls to the split, as whoever asks for one is told
		}
		sum += p.random(rng, t)
	}
	return map[string]float64{"random": sum / randomGames}
}

// random plays a game of two random players and gives their welfare.
func (p *TwoPlayer) random(rng *rand.Rand, t task) float64 {
	var offer *pile
	for reply := range p.cfg.Replies {
		moves := legal(t)
		i := rng.IntN(len(moves) + min(reply, 1))
		if i == len(moves) {
			mine, theirs := t.First, t.Second // of the one that offered, and of the one that takes it
			if reply%2 == 0 {
				mine, theirs = theirs, mine
			}
			return float64(offer.worth(mine)+t.rest(*offer).worth(theirs)) / float64(t.best())
		}
		offer = &moves[i]
	}
	return 0
}

// legal are all offers.
func legal(t task) (offers []pile) {
	for a := range t.Items[0] + 1 {
		for b := range t.Items[1] + 1 {
			for c := range t.Items[2] + 1 {
				offers = append(offers, pile{a, b, c})
			}
		}
	}
	return offers
}
