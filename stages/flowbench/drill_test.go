package flowbench

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"time"
	"unicode/utf8"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

const drillName = "drill"

// vocabulary is the characters that are tokens: three bytes of text and an id of two bytes each, which is near to what a large
// tokenizer's tokens are.
const vocabulary = 8192

// alphabet is the characters from U+4E00 on.
var alphabet = func() string {
	var b []byte
	for i := range rune(vocabulary) {
		b = utf8.AppendRune(b, 0x4E00+i)
	}
	return string(b)
}()

// A pool is random text, its tokens and log-probabilities, of which every message is a part.
type pool struct {
	text     string
	tokens   []int32
	logprobs []float32
}

const (
	poolSize = 1 << 16
	// firstToken is the id of the first character: those before it are special.
	firstToken = 8
)

// words is the pool of all messages. Some characters are much more frequent than others, as words are.
var words = func() (p pool) {
	r := rand.New(rand.NewPCG(1, 2))
	var text []byte
	for range poolSize {
		c := int32(float64(vocabulary) * r.Float64() * r.Float64() * r.Float64())
		text = utf8.AppendRune(text, 0x4E00+c)
		p.tokens = append(p.tokens, firstToken+c)
		p.logprobs = append(p.logprobs, float32(-r.ExpFloat64()))
	}
	p.text = string(text)
	return p
}()

// from is where the n tokens of a message begin in the pool.
func from(seed int64, message, n int) int {
	return int(rand.NewPCG(uint64(seed), uint64(message)).Uint64() % uint64(poolSize-n))
}

// A drill is an environment of turns of equal length, which costs nothing but its texts. takes is the time that a group's
// rollouts take.
type drill struct {
	shape
	takes func(seed int64) time.Duration
}

func (d *drill) Info() env.Info {
	return env.Info{Name: drillName, Version: "1", Train: 1 << 20, MaxTurns: d.nodes / 2}
}

func (d *drill) Task(_ env.Split, index int) (json.RawMessage, error) {
	return json.Marshal(map[string]int{"index": index})
}

func (d *drill) Start(ctx context.Context, _ json.RawMessage, seed int64) (env.Episode, error) {
	if d.takes != nil {
		select {
		case <-time.After(d.takes(seed)): // the pace is what is asked for
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return &drilling{drill: d, seed: seed}, nil
}

// A drilling is one episode. Its reward is in the policy's last words.
type drilling struct {
	*drill
	seed  int64
	turns int
	last  string
}

// scaffold is the tokens of a message beside its text.
const scaffold = 2

func (d *drilling) say() []env.Message {
	n := d.tokens - scaffold
	at := from(d.seed, d.turns, n)
	return []env.Message{env.User(words.text[3*at : 3*(at+n)])}
}

func (d *drilling) Prompt() []env.Message { return d.say() }

func (d *drilling) Reply(_ context.Context, m env.Message) (env.Turn, error) {
	d.turns++
	d.last = m.Content
	if d.turns >= d.nodes/2 {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: d.say()}, nil
}

func (d *drilling) Score(context.Context) (env.Score, error) {
	first, _ := utf8.DecodeRuneInString(d.last)
	return env.Score{Rewards: env.Rewards{"points": env.Value(float64(first) / vocabulary)}}, nil
}

// A parrot is a policy that answers at once, with as many tokens as the shape says.
type parrot struct{ shape }

func (p parrot) Generate(_ context.Context, r inference.Request) (inference.Completion, error) {
	n := p.tokens - scaffold
	at := from(r.Seed, len(r.Tokens), n)
	c := inference.Completion{
		Tokens: make([]int32, n+1), Logprobs: words.logprobs[at : at+n+1], Versions: []schemas.VersionRun{{Version: 0}}, FinishReason: inference.FinishStop,
	}
	copy(c.Tokens, words.tokens[at:])
	c.Tokens[n] = r.StopTokens[0]
	return c, nil
}

func (parrot) Probe(_ context.Context, p inference.Probe) ([]float32, error) {
	return make([]float32, len(p.Tokens)), nil
}

func (parrot) Verify(context.Context, []byte) error { return nil }
func (parrot) Recorded(policy string) string        { return policy }
func (parrot) Server(string) string                 { return "parrot" }
func (parrot) Close()                               {}
