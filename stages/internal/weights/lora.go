package weights

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/prl-project/prl/stages/internal/safetensors"
)

// peft's names: the tensors of an adapter for base.weight are peftPrefix + base + loraA and + loraB, and its adapter_config.json
// stands under adapterConfigKey in the file's metadata.
const (
	peftPrefix       = "base_model.model."
	loraA            = ".lora_A.weight"
	loraB            = ".lora_B.weight"
	adapterConfigKey = "adapter_config"
)

// adapterConfig is what matters of peft's adapter_config.json. What would make another sum of the weights is refused.
type adapterConfig struct {
	PeftType      string         `json:"peft_type"`
	R             int            `json:"r"`
	Alpha         float64        `json:"lora_alpha"`
	UseRSLoRA     bool           `json:"use_rslora"`
	UseDoRA       bool           `json:"use_dora"`
	FanInFanOut   bool           `json:"fan_in_fan_out"`
	RankPattern   map[string]any `json:"rank_pattern"`
	AlphaPattern  map[string]any `json:"alpha_pattern"`
	Bias          string         `json:"bias"`
	ModulesToSave []string       `json:"modules_to_save"`
}

func (c adapterConfig) validate() error {
	switch {
	case c.PeftType != "LORA":
		return fmt.Errorf("peft_type = %q: only LORA is supported", c.PeftType)
	case c.R < 1:
		return fmt.Errorf("r = %d: at least 1", c.R)
	case c.UseDoRA || c.FanInFanOut || len(c.RankPattern) > 0 || len(c.AlphaPattern) > 0 || len(c.ModulesToSave) > 0 || c.Bias != "" && c.Bias != "none":
		return errors.New("use_dora, fan_in_fan_out, rank_pattern, alpha_pattern, bias and modules_to_save are not supported")
	}
	return nil
}

// scale is what B·A is multiplied by.
func (c adapterConfig) scale() float32 {
	if c.UseRSLoRA {
		return float32(c.Alpha / math.Sqrt(float64(c.R)))
	}
	return float32(c.Alpha / float64(c.R))
}

// A factored is the change of one matrix W [out × in]: scale · B [out × r] · A [r × in].
type factored struct{ a, b *safetensors.Tensor }

// Merge puts an adapter into whole weights: W + scale · B·A, summed in float32 and rounded once to the type of W (F32, BF16
// or F16). whole is changed; after an error it is of no use.
func Merge(whole, adapter []byte) error {
	into, err := safetensors.ReadHeader(bytes.NewReader(whole), int64(len(whole)))
	if err != nil {
		return fmt.Errorf("weights that an adapter is for: %w", err)
	}
	from, err := safetensors.ReadHeader(bytes.NewReader(adapter), int64(len(adapter)))
	if err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	var cfg adapterConfig
	if err := json.Unmarshal([]byte(from.Metadata[adapterConfigKey]), &cfg); err != nil {
		return fmt.Errorf("adapter: %s in its metadata: %w", adapterConfigKey, err)
	}
	if err := cfg.validate(); err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	changes, err := pair(from.Tensors)
	if err != nil {
		return fmt.Errorf("adapter: %w", err)
	}
	for _, w := range into.Tensors {
		f, ok := changes[w.Name]
		if !ok {
			continue
		}
		delete(changes, w.Name)
		if err := f.add(whole[w.From:w.To], w, adapter, cfg); err != nil {
			return fmt.Errorf("adapter of %q: %w", w.Name, err)
		}
	}
	for name := range changes {
		return fmt.Errorf("adapter: the weights have no tensor %q", name)
	}
	return nil
}

// pair finds the two factors for each matrix, by its name in the whole weights.
func pair(tensors []safetensors.Tensor) (map[string]factored, error) {
	changes := map[string]factored{}
	for i, t := range tensors {
		name, ok := strings.CutPrefix(t.Name, peftPrefix)
		base, isA := strings.CutSuffix(name, loraA)
		base2, isB := strings.CutSuffix(name, loraB)
		if !ok || !isA && !isB {
			return nil, fmt.Errorf("its tensor %q is neither %s<name>%s nor %s", t.Name, peftPrefix, loraA, loraB)
		}
		if isB {
			base = base2
		}
		f := changes[base+".weight"]
		if isA {
			f.a = &tensors[i]
		} else {
			f.b = &tensors[i]
		}
		changes[base+".weight"] = f
	}
	for name, f := range changes {
		if f.a == nil || f.b == nil {
			return nil, fmt.Errorf("it has one of the two factors for %q", name)
		}
	}
	return changes, nil
}

// add changes data, which is the tensor w, by the factors in adapter.
func (f factored) add(data []byte, w safetensors.Tensor, adapter []byte, cfg adapterConfig) error {
	if len(w.Shape) != 2 || len(f.a.Shape) != 2 || len(f.b.Shape) != 2 ||
		f.a.Shape[0] != cfg.R || f.b.Shape[1] != cfg.R || f.b.Shape[0] != w.Shape[0] || f.a.Shape[1] != w.Shape[1] {
		return fmt.Errorf("factors of shapes %v and %v with r = %d for a matrix of %v", f.b.Shape, f.a.Shape, cfg.R, w.Shape)
	}
	sum, ok := safetensors.Floats(w.DType, data)
	a, okA := safetensors.Floats(f.a.DType, adapter[f.a.From:f.a.To])
	b, okB := safetensors.Floats(f.b.DType, adapter[f.b.From:f.b.To])
	if !ok || !okA || !okB {
		return fmt.Errorf("types %s, %s and %s: real numbers of 32 or 16 bits are supported", w.DType, f.a.DType, f.b.DType)
	}
	if rows, cols := w.Shape[0], w.Shape[1]; rows > 0 && cols > 0 {
		gonum.Implementation{}.Sgemm(blas.NoTrans, blas.NoTrans, rows, cols, cfg.R, cfg.scale(), b, cfg.R, a, cols, 1, sum, cols)
	}
	return safetensors.PutFloats(w.DType, data, sum)
}
