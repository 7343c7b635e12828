package lm

import (
	"fmt"
	"math"
)

// AdamW is Adam with decoupled weight decay (arXiv:1711.05101) and clipping of the gradient's global norm.
type AdamW struct {
	Beta1, Beta2 float64
	Eps          float64
	WeightDecay  float64 // times the learning rate; on matrices, not on norms
	MaxNorm      float64 // the gradient is scaled down to this norm; 0 is no limit

	step int
	m, v []float32
	grad []float32 // scratch of update
}

// NewAdamW has the betas 0.9 and 0.95, epsilon 1e-8, no weight decay and a maximal norm of 1.
func NewAdamW() *AdamW { return &AdamW{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, MaxNorm: 1} }

// StepInfo says what an optimizer step did.
type StepInfo struct {
	GradNorm float64 // before clipping; NaN or Inf where the gradient was not finite
	Applied  bool    // false: gradient or learning rate was not finite, and nothing was changed
}

// Step updates the model by the gradient summed since the last step, at the learning rate lr, and sets the sum to zero.
func (l *Learner) Step(opt *AdamW, lr float64) StepInfo {
	info := opt.update(l.model, l.gradient(), lr)
	clear(l.sum)
	return info
}

// Gradient is the summed gradient under the names and in the shapes of the model's parameters, as a copy.
func (l *Learner) Gradient() []Param {
	grad := make([]float32, len(l.model.flat))
	l.model.untranspose(grad, l.gradient())
	return l.model.shaped(grad, "")
}

// untranspose writes a gradient as the learner keeps it to dst, in the layout of the weights.
func (m *Model) untranspose(dst, src []float32) {
	copy(dst, src)
	for _, l := range m.matrices() {
		if l.transposed() {
			transpose(dst[l.off:l.off+len(l.w)], src[l.off:l.off+len(l.w)], l.in, l.out)
		}
	}
}

// shaped names the parts of a flat vector after the parameters, as views.
func (m *Model) shaped(flat []float32, prefix string) []Param {
	out := make([]Param, len(m.params))
	off := 0
	for i, p := range m.params {
		out[i] = Param{Name: prefix + p.Name, Shape: p.Shape, Data: flat[off : off+len(p.Data)]}
		off += len(p.Data)
	}
	return out
}

func (o *AdamW) init(m *Model) {
	if o.m == nil {
		o.m, o.v = make([]float32, len(m.flat)), make([]float32, len(m.flat))
	}
}

func (o *AdamW) update(m *Model, sum []float32, lr float64) StepInfo {
	o.init(m)
	if o.grad == nil {
		o.grad = make([]float32, len(sum))
	}
	grad := o.grad
	m.untranspose(grad, sum)
	var square float64
	for _, g := range grad {
		square += float64(g) * float64(g)
	}
	norm := math.Sqrt(square)
	if math.IsNaN(norm) || math.IsInf(norm, 0) || math.IsNaN(lr) || math.IsInf(lr, 0) {
		return StepInfo{GradNorm: norm}
	}
	scale := float32(1)
	if o.MaxNorm > 0 && norm > o.MaxNorm {
		scale = float32(o.MaxNorm / norm)
	}
	o.step++
	b1, b2 := float32(o.Beta1), float32(o.Beta2)
	c1 := float32(lr / (1 - math.Pow(o.Beta1, float64(o.step))))
	c2 := float32(1 / (1 - math.Pow(o.Beta2, float64(o.step))))
	eps := float32(o.Eps)
	off := 0
	for _, p := range m.params {
		keep := float32(1)
		if len(p.Shape) > 1 {
			keep = float32(1 - lr*o.WeightDecay)
		}
		n := len(p.Data)
		mo, ve := o.m[off:off+n], o.v[off:off+n]
		for i, g := range grad[off : off+n] {
			g *= scale
			mo[i] = b1*mo[i] + (1-b1)*g
			ve[i] = b2*ve[i] + (1-b2)*g*g
			p.Data[i] = keep*p.Data[i] - c1*mo[i]/(float32(math.Sqrt(float64(ve[i]*c2)))+eps)
		}
		off += n
	}
	m.refresh()
	return StepInfo{GradNorm: norm, Applied: true}
}

// Tensors of the optimizer's state beside the moments, which are exp_avg.<parameter> and exp_avg_sq.<parameter>.
const (
	stateStep     = "step" // number of updates, exact below 2²⁴
	stateAvg      = "exp_avg."
	stateAvgSq    = "exp_avg_sq."
	maxStateSteps = 1 << 24
)

// State is what a checkpoint must keep to go on with the same bits, as views.
func (o *AdamW) State(m *Model) []Param {
	o.init(m)
	out := []Param{{Name: stateStep, Shape: []int{1}, Data: []float32{float32(o.step)}}}
	out = append(out, m.shaped(o.m, stateAvg)...)
	return append(out, m.shaped(o.v, stateAvgSq)...)
}

// Load restores a State of the same model.
func (o *AdamW) Load(m *Model, state []Param) error {
	n := &AdamW{}
	n.init(m)
	dst := n.State(m)
	if err := loadInto(dst, state); err != nil {
		return fmt.Errorf("load optimizer state: %w", err)
	}
	step := dst[0].Data[0]
	if !(step >= 0 && step < maxStateSteps) || step != float32(int(step)) {
		return fmt.Errorf("load optimizer state: step %g is no count of updates", step)
	}
	o.m, o.v, o.step = n.m, n.v, int(step)
	return nil
}
