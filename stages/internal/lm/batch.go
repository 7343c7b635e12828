package lm

import (
	"fmt"
	"math"
)

// Batch is a micro-batch: sequences one after the other, without padding. A sequence attends to itself only and its
// positions start at 0. The arrays are aligned with Tokens: what stands at i belongs to token i, which is predicted from
// the tokens before it. A token is in the loss, and is scored, if its Mask or one of its weights is not 0; what stands at
// the others is not read. The first token of a sequence has no prediction and is never in the loss.
type Batch struct {
	Tokens       []int32
	SeqLens      []int32   // their sum is len(Tokens)
	Mask         []byte    // 1 = in component RL
	Advantages   []float32 // used by RL
	LogProbs     []float32 // log-probabilities under the policy that sampled, after temperature; used by RL and RefKL
	Temperatures []float32 // what the logits are divided by; nil: 1 everywhere
	CEWeights    []float32 // not 0 = in component CE; nil: 0 everywhere
	RefKLWeights []float32 // not 0 = in component RefKL; nil: 0 everywhere
	RefLogProbs  []float32 // log-probabilities under the teacher; used by RefKL
}

// inLoss reports whether token i is in a component.
func (b *Batch) inLoss(i int) bool {
	return b.Mask[i] != 0 || b.ceWeight(i) != 0 || b.refKLWeight(i) != 0
}

func (b *Batch) ceWeight(i int) float64    { return weight(b.CEWeights, i) }
func (b *Batch) refKLWeight(i int) float64 { return weight(b.RefKLWeights, i) }

func weight(weights []float32, i int) float64 {
	if weights == nil {
		return 0
	}
	return float64(weights[i])
}

// Validate checks the batch against a model. What no component reads may be nil.
func (b *Batch) Validate(c Config) error {
	sum := 0
	for i, n := range b.SeqLens {
		if n < 1 || int(n) > c.MaxPositionEmbeddings {
			return fmt.Errorf("sequence %d has %d tokens: allowed are 1 to %d", i, n, c.MaxPositionEmbeddings)
		}
		sum += int(n)
	}
	if sum != len(b.Tokens) {
		return fmt.Errorf("sequence lengths sum to %d, but there are %d tokens", sum, len(b.Tokens))
	}
	if len(b.Mask) != len(b.Tokens) {
		return fmt.Errorf("mask has %d entries for %d tokens", len(b.Mask), len(b.Tokens))
	}
	for _, a := range []struct {
		name   string
		values []float32
	}{
		{"advantages", b.Advantages}, {"log-probabilities", b.LogProbs}, {"temperatures", b.Temperatures}, {"ce weights", b.CEWeights},
		{"ref_kl weights", b.RefKLWeights}, {"the teacher's log-probabilities", b.RefLogProbs},
	} {
		if a.values != nil && len(a.values) != len(b.Tokens) {
			return fmt.Errorf("%s have %d entries for %d tokens", a.name, len(a.values), len(b.Tokens))
		}
	}
	first := 0
	for i, n := range b.SeqLens {
		if b.inLoss(first) {
			return fmt.Errorf("the first token of sequence %d is in the loss, but nothing predicts it", i)
		}
		first += int(n)
	}
	for i, t := range b.Tokens {
		if t < 0 || int(t) >= c.VocabSize {
			return fmt.Errorf("token %d is %d: not in the vocabulary of %d", i, t, c.VocabSize)
		}
		switch {
		case b.Mask[i] > 1:
			return fmt.Errorf("mask of token %d is %d: allowed are 0 and 1", i, b.Mask[i])
		case !b.inLoss(i):
		case b.Temperatures != nil && !(b.Temperatures[i] > 0 && b.Temperatures[i] < math.MaxFloat32):
			return fmt.Errorf("temperature of token %d is %g: must be positive", i, b.Temperatures[i])
		}
	}
	return nil
}

func (b *Batch) temperature(i int) float32 {
	if b.Temperatures == nil {
		return 1
	}
	return b.Temperatures[i]
}

// shardRows is how many tokens a shard has at least, where there are that many: enough for fast products, few enough
// that activations stay in the cache and there are shards for every CPU.
const shardRows = 128

// shard is a range of whole sequences of a batch.
type shard struct {
	seqFrom, seqTo int
	from           int // its first token
}

// shards cuts the batch, by its lengths alone, so that sums over shards do not depend on the number of CPUs.
func (b *Batch) shards() []shard { return b.appendShards(nil) }

func (b *Batch) appendShards(out []shard) []shard {
	at, rows := 0, 0
	for i, n := range b.SeqLens {
		if i == 0 || rows+int(n) > shardRows {
			out = append(out, shard{seqFrom: i, from: at})
			rows = 0
		}
		out[len(out)-1].seqTo = i + 1
		rows += int(n)
		at += int(n)
	}
	return out
}

// load fills the pass with a shard of the batch; the wanted rows are those that predict a token in the loss.
func (p *pass) load(b *Batch, s shard) {
	p.reset()
	at := s.from
	for _, n := range b.SeqLens[s.seqFrom:s.seqTo] {
		sp := span{from: len(p.tokens), wantFrom: len(p.want)}
		for i := range int(n) {
			if i+1 < int(n) && b.inLoss(at+i+1) {
				p.want = append(p.want, int32(sp.from+i))
			}
			p.pos = append(p.pos, int32(i))
		}
		p.tokens = append(p.tokens, b.Tokens[at:at+int(n)]...)
		at += int(n)
		sp.to, sp.wantTo = len(p.tokens), len(p.want)
		p.spans = append(p.spans, sp)
	}
}
