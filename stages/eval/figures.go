package eval

import (
	"maps"
	"math"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// figures adds up the examples of a round.
type figures struct {
	k              int
	threshold      float64
	ok, failed     int64
	avg, pass      clustered
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

// clustered is a mean over examples with its standard error.
type clustered struct {
	mean
	origin float64         // the first value: sums are of distances from it, which cancel less
	at     map[taskKey]int // index into tasks
	tasks  []mean          // in the order in which they came
}

func (c *clustered) add(task taskKey, v float64) {
	if c.n == 0 {
		c.origin, c.at = v, map[taskKey]int{}
	}
	i, known := c.at[task]
	if !known {
		i = len(c.tasks)
		c.at[task], c.tasks = i, append(c.tasks, mean{})
	}
	c.tasks[i].add(v - c.origin)
	c.mean.add(v)
}

// stderr is the standard error of the mean, √(G/(G-1) · Σ(sum of v - mean over a task)²) / n for n examples of G tasks; 0
// where fewer than two tasks say nothing of it. An example's value is the mean of its rollouts, which share a task and are
// not independent, nor are examples of one task: each task is a cluster (arXiv:2411.00640, section 2.2). Where every
// example has a task of its own it is √(Σ(v - mean)² / (n-1) / n).
func (c *clustered) stderr() float64 {
	groups := float64(len(c.tasks))
	if groups < 2 {
		return 0
	}
	var all mean
	for _, t := range c.tasks {
		all.sum, all.n = all.sum+t.sum, all.n+t.n
	}
	squares := 0.0
	for _, t := range c.tasks {
		d := t.sum - float64(t.n)*all.value()
		squares += d * d
	}
	return math.Sqrt(squares*groups/(groups-1)) / float64(all.n)
}

func newFigures(k int, threshold float64) *figures {
	return &figures{k: k, threshold: threshold, reward: map[string]*mean{}, metric: map[string]*mean{}}
}

// add takes the rollouts of one example of a task. Failed rollouts, and those to which no reward applies, are outside the means;
// an example with fewer than k others is outside pass@k, which is not defined for it.
func (f *figures) add(task taskKey, rollouts []*rollout) {
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
		f.avg.add(task, rewards.value())
	}
	if rewards.n >= f.k {
		f.pass.add(task, passAtK(rewards.n, correct, f.k))
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
	res.AvgMissing, res.PassMissing = f.avg.n == 0, f.pass.n == 0
	res.AvgStderr, res.PassStderr = f.avg.stderr(), f.pass.stderr()
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
