package inference

import "testing"

// TestCostGenerate: what the native backend allocates for a completion does not grow with its tokens, but for the
// doubling of slices.
func TestCostGenerate(t *testing.T) {
	cfg := testConfig()
	cfg.MaxModelLen = 128
	n := newNative(cfg)
	m, tok := benchModel(t)
	if err := n.Load(t.Context(), policyOf(t, 0, m, tok)); err != nil {
		t.Fatal(err)
	}
	runBackend(t, n)
	generate := func(tokens int) func() {
		return func() {
			c, err := n.Generate(t.Context(), Request{Tokens: promptOf(1), MaxTokens: tokens, Temperature: 1, Seed: 1})
			if err != nil || len(c.Tokens) != tokens {
				t.Fatalf("%d tokens, error %v", len(c.Tokens), err)
			}
		}
	}
	generate(100)() // scratch and slot grow once
	short, long := testing.AllocsPerRun(20, generate(4)), testing.AllocsPerRun(20, generate(60))
	if short > 30 || long > short+3 {
		t.Errorf("a completion of 4 tokens allocates %g times, of 60 tokens %g times", short, long)
	}
}
