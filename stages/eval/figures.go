package eval

import (
	"maps"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// figures adds up the examples of a round.
type figures struct {
	k              int
	threshold      float64
	ok, failed     int64
	avg, pass      mean // over examples
	reward, metric map[string]*mean
}

type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

// value is 0 where there is nothing to average.
func (m *mean) value() float64 {
	if m.n == 0 {
		return 0
	}
	return m.sum / float64(m.n)
}

func newFigures(k int, threshold float64) *figures {
	return &figures{k: k, threshold: threshold, reward: map[string]*mean{}, metric: map[string]*mean{}}
}

// add takes the rollouts of one example. Failed rollouts, and those to which no reward applies, are outside the means;
// an example with fewer than k others is outside pass@k, which is not defined for it.
func (f *figures) add(rollouts []*rollout) {
	var rewards mean
	correct := 0
	for _, r := range rollouts {
		if !r.ok() {
			f.failed++
			continue
		}
		f.ok++
		for name, v := range r.rewards {
			if v != nil {
				addTo(f.reward, name, *v)
			}
		}
		for name, v := range r.metrics {
			addTo(f.metric, name, v)
		}
		if r.fate.Reward == nil {
			continue
		}
		rewards.add(*r.fate.Reward)
		if *r.fate.Reward >= f.threshold {
			correct++
		}
	}
	if rewards.n > 0 {
		f.avg.add(rewards.value())
	}
	if rewards.n >= f.k {
		f.pass.add(passAtK(rewards.n, correct, f.k))
	}
}

func addTo(m map[string]*mean, name string, v float64) {
	if m[name] == nil {
		m[name] = &mean{}
	}
	m[name].add(v)
}

func (f *figures) write(res *schemas.EvalResult) {
	res.Episodes, res.Errored = f.ok, f.failed
	res.AvgAtK, res.PassAtK = f.avg.value(), f.pass.value()
	res.Rewards, res.Metrics = values(f.reward), values(f.metric)
}

func values(m map[string]*mean) map[string]float64 {
	v := make(map[string]float64, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		v[name] = m[name].value()
	}
	return v
}

// passAtK is the unbiased estimate of the chance that one of k rollouts is correct, from n of which c are:
// 1 - C(n-c, k) / C(n, k) (arXiv:2107.03374), k ≤ n.
func passAtK(n, c, k int) float64 {
	if n-c < k {
		return 1
	}
	none := 1.0
	for i := n - c + 1; i <= n; i++ {
		none *= 1 - float64(k)/float64(i)
	}
	return 1 - none
}
