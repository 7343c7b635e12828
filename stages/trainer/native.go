package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"

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

// NewNative makes version 0 from the run's seed, or from a folder.
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
	if model.Folder != "" {
		dir, err := model.folder()
		if err != nil {
			return nil, nil, nil, err
		}
		return folderModel(dir)
	}
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

// Prepare implements Learner.
func (n *Native) Prepare(_ context.Context, step int64, micro []*schemas.MicroBatch) (Step, error) {
	tokens, err := lossTokensOf(micro[0])
	if err != nil {
		return nil, pipeline.Fatal("%w", err)
	}
	return func(ctx context.Context) (Metrics, error) { return n.step(ctx, step, tokens, micro) }, nil
}

func (n *Native) step(ctx context.Context, step int64, tokens lossTokens, micro []*schemas.MicroBatch) (Metrics, error) {
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
	pipeline.Crash(stage + ".before-update")
	lr := n.schedule.At(int(step))
	info := n.learner.Step(n.adamw, lr)
	v := values(total)
	v["lr"], v["entropy_coef"], v["grad_norm"] = lr, entropyCoef, info.GradNorm
	return Metrics{Skipped: !info.Applied, Work: Work{Tokens: tokensOf(micro)}, Values: v}, nil
}

// tokensOf is the number of tokens of micro-batches, in the loss or not.
func tokensOf(micro []*schemas.MicroBatch) (n int64) {
	for _, mb := range micro {
		n += int64(mb.TokenIDs.Len())
	}
	return n
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

// Weights are the current weights as safetensors.
func (n *Native) Weights() ([]byte, error) { return encode(n.learner.Model().Params()) }

// Snapshot implements Learner. The optimizer's state is AdamW's moments and its count of updates, as safetensors.
func (n *Native) Snapshot(_ context.Context, checkpoint bool) (Snapshot, error) {
	weights, err := n.Weights()
	if err != nil || !checkpoint {
		return copied{weights, nil}, err
	}
	state, err := encode(n.adamw.State(n.learner.Model()))
	return copied{weights, state}, err
}

// Load implements Learner.
func (n *Native) Load(_ context.Context, weights, checkpoint string) error {
	if weights != "" {
		params, err := readSafetensors(weights)
		if err != nil {
			return err
		}
		if err := n.learner.Model().Load(params); err != nil {
			return err
		}
	}
	if checkpoint == "" {
		return nil
	}
	state, err := readSafetensors(checkpoint)
	if err != nil {
		return err
	}
	return n.adamw.Load(n.learner.Model(), state)
}

func readSafetensors(path string) ([]lm.Param, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return lm.ReadSafetensors(data)
}

// copied is a Snapshot in memory.
type copied struct{ weights, checkpoint []byte }

// Weights implements Snapshot.
func (c copied) Weights(_ context.Context, path string) error {
	return os.WriteFile(path, c.weights, 0o666)
}

// Checkpoint implements Snapshot.
func (c copied) Checkpoint(_ context.Context, path string) error {
	return os.WriteFile(path, c.checkpoint, 0o666)
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
