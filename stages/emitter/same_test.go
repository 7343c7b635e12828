package emitter

import (
	"crypto/sha256"
	"encoding/hex"
	"math/rand/v2"
	"testing"
)

// TestDefaultsEmitTheSame holds what a run with the default mix and curriculum emits to what it always has: a run is
// repeated by its seed, whatever version of the program does it.
func TestDefaultsEmitTheSame(t *testing.T) {
	for name, c := range map[string]struct {
		ratios [2]*float64
		want   string
	}{
		"by tasks":  {[2]*float64{nil, nil}, "c10724ccd0f9e48c"},
		"by ratios": {[2]*float64{ratio(0.3), ratio(2)}, "14af5cac8ed9974a"},
	} {
		t.Run(name, func(t *testing.T) {
			envs := testEnvs()
			for i, name := range []string{"catch", "wordle"} {
				env := envs[name]
				env.Ratio = c.ratios[i]
				envs[name] = env
			}
			w := ready(t, testRun(), DefaultConfig(), envs)
			rng := rand.New(rand.NewPCG(8, 8))
			for range 60 {
				w.table(info("catch", 10))
				w.table(info("wordle", 7))
				w.live(rng, 8)
			}
			sum := sha256.Sum256([]byte(describe(w.tasks)))
			if got := hex.EncodeToString(sum[:8]); got != c.want || len(w.groups) < 60 {
				t.Errorf("%d groups with hash %s, want %s", len(w.groups), got, c.want)
			}
		})
	}
}
