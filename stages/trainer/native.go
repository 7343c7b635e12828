package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Native is the learner in plain Go on the CPU. One process trains what was packed for any number of ranks.
type Native struct {
	run               pipeline.RunConfig
	cfg               Config
	schedule          lm.Schedule
	learner           *lm.Learner
	adamw             *lm.AdamW
	config, tokenizer []byte
}

// NewNative makes version 0 from the run's seed.
func NewNative(run pipeline.RunConfig, cfg Config, model ModelConfig) (*Native, error) {
	m, config, tokenizer, err := newModel(run, model)
	if err != nil {
		return nil, err
	}
	adamw := &lm.AdamW{Beta1: cfg.Betas[0], Beta2: cfg.Betas[1], Eps: cfg.Eps, WeightDecay: cfg.WeightDecay, MaxNorm: cfg.MaxGradNorm}
	return &Native{
		run: run, cfg: cfg, schedule: cfg.schedule(run), learner: lm.NewLearner(m), adamw: adamw, config: config, tokenizer: tokenizer,
	}, nil
}

// newModel makes the model with the weights of version 0 and the files that describe it.
func newModel(run pipeline.RunConfig, model ModelConfig) (m *lm.Model, config, tokenizer []byte, err error) {
	t, err := lm.NewTokenizer(model.Alphabet)
	if err != nil {
		return nil, nil, nil, err
	}
	if m, err = lm.New(model.lm(t), uint64(run.Seed)); err != nil {
		return nil, nil, nil, err
	}
	if config, err = json.MarshalIndent(m.Config(), "", "  "); err != nil {
		return nil, nil, nil, fmt.Errorf("encode config.json: %w", err)
	}
	if tokenizer, err = json.MarshalIndent(t, "", "  "); err != nil {
		return nil, nil, nil, fmt.Errorf("encode tokenizer.json: %w", err)
	}
	return m, append(config, '\n'), append(tokenizer, '\n'), nil
}

// Exact implements Learner: the same bytes on every machine of one architecture, whatever the number of CPUs.
func (n *Native) Exact() bool { return true }

// Files implements Learner.
func (n *Native) Files() (config, tokenizer []byte) { return n.config, n.tokenizer }

// Step implements Learner.
func (n *Native) Step(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Metrics, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return Metrics{}, pipeline.Fatal("%w", err)
	}
	entropyCoef := n.cfg.entropyCoef(n.run, step)
	loss := n.cfg.components(tokens, entropyCoef)
	var total lm.Metrics
	for _, mb := range micro {
		if err := ctx.Err(); err != nil {
			return Metrics{}, err
		}
		if mb.SeqLens.Len() == 0 {
			continue // a dummy
		}
		m, err := n.learner.Accumulate(batchOf(mb), loss...)
		if err != nil {
			return Metrics{}, pipeline.Fatal("rank %d, micro-batch %d: %w", mb.Rank, mb.Index, err)
		}
		total.Add(m)
	}
	lr := n.schedule.At(int(step))
	info := n.learner.Step(n.adamw, lr)
	v := values(total)
	v["lr"], v["entropy_coef"], v["grad_norm"] = lr, entropyCoef, info.GradNorm
	return Metrics{Skipped: !info.Applied, Values: v}, nil
}

func batchOf(m *schemas.MicroBatch) *lm.Batch {
	return &lm.Batch{
		Tokens: m.TokenIDs.Values(), SeqLens: m.SeqLens.Values(), Mask: m.Mask,
		Advantages: m.Advantages.Values(), LogProbs: m.Logprobs.Values(), Temperatures: m.Temperatures.Values(),
		CEWeights: orNone(m.CeWeights), RefKLWeights: orNone(m.RefKlWeights), RefLogProbs: orNone(m.RefLogprobs),
	}
}

// orNone is the values of a tensor, nil for one that is left out.
func orNone(t schemas.Float32s) []float32 {
	if t.Len() == 0 {
		return nil
	}
	return t.Values()
}

// Weights implements Learner.
func (n *Native) Weights() ([]byte, error) { return encode(n.learner.Model().Params()) }

// Load implements Learner.
func (n *Native) Load(weights []byte) error {
	params, err := lm.ReadSafetensors(weights)
	if err != nil {
		return err
	}
	return n.learner.Model().Load(params)
}

// Checkpoint implements Learner: AdamW's moments and its count of updates, as safetensors.
func (n *Native) Checkpoint() ([]byte, error) { return encode(n.adamw.State(n.learner.Model())) }

// Restore implements Learner.
func (n *Native) Restore(checkpoint []byte) error {
	state, err := lm.ReadSafetensors(checkpoint)
	if err != nil {
		return err
	}
	return n.adamw.Load(n.learner.Model(), state)
}

// Close implements Learner: there is nothing to end.
func (n *Native) Close() {}

func encode(params []lm.Param) ([]byte, error) {
	var b bytes.Buffer
	if err := lm.WriteSafetensors(&b, params); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
