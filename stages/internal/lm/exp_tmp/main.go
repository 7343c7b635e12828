package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/reversetext"
	"github.com/prl-project/prl/stages/internal/lm"
)

var (
	mode   = flag.String("mode", "mix", "")
	steps  = flag.Int("steps", 250, "")
	batch  = flag.Int("batch", 256, "")
	group  = flag.Int("group", 8, "")
	lr     = flag.Float64("lr", 3e-3, "")
	final  = flag.Float64("final", 0.1, "")
	kind   = flag.String("kind", "linear", "")
	ent    = flag.Float64("ent", 0.01, "")
	entEnd = flag.Float64("entend", 1, "share of steps after which the bonus is 0")
	init_  = flag.Float64("init", 0.02, "")
	seed   = flag.Uint64("seed", 1, "")
	catchT = flag.Int("catchtok", 1, "")
	revT   = flag.Int("revtok", 8, "")
	share  = flag.Float64("share", 0.5, "catch share in mix")
	std    = flag.Bool("std", true, "divide reverse advantages by std")
	pos    = flag.String("pos", "char", "char|seq")
	hid    = flag.Int("hid", 64, "")
	layers = flag.Int("layers", 2, "")
	heads  = flag.Int("heads", 4, "")
	clip   = flag.Float64("clip", 1, "")
	beta2  = flag.Float64("b2", 0.95, "")
	maxLen = flag.Int("maxlen", 6, "")
	cols   = flag.Int("cols", 3, "")
	rows   = flag.Int("rows", 4, "")
	every  = flag.Int("every", 25, "")
	old    = flag.Int("old", 0, "off-policy steps")
)

type roll struct {
	env           int // 0 catch 1 rev
	word          string
	ball, row, pd int
	toks          []int32
	mask          []byte
	lp            []float32
	adv           []float32
	turnToks      int
	reply         []int32
	ans           [][2]int
	done          bool
	reward        float64
	chars         []float64 // per reply token (rev)
	slot          int
	pending       []int32
	start         int
}

var tok *lm.Tokenizer

func msg(role, c string) []int32 { x, err := tok.RenderMessage(role, c); check(err); return x }
func check(err error) {
	if err != nil {
		panic(err)
	}
}
func (r *roll) obs() string { return fmt.Sprintf("%d%d%d", r.ball, r.row, r.pd) }
func (r *roll) begin() {
	s := r.word
	if r.env == 0 {
		s = r.obs()
	}
	r.pending = append(msg("user", s), tok.GenerationPrompt()...)
}
func (r *roll) push(t int32, m byte, lp float32) {
	r.toks = append(r.toks, t)
	r.mask = append(r.mask, m)
	r.lp = append(r.lp, lp)
	r.adv = append(r.adv, 0)
}

// sampled handles one sampled token; sets done or pending
func (r *roll) sampled(t int32, lp float32) {
	r.push(t, 1, lp)
	limit := *catchT
	if r.env == 1 {
		limit = *revT
	}
	eos := t == tok.EOS()
	if !eos {
		r.reply = append(r.reply, t)
	}
	r.turnToks++
	if !eos && r.turnToks < limit {
		r.pending = []int32{t}
		return
	}
	text := tok.Decode(r.reply)
	if r.env == 0 {
		move := map[string]int{"l": -1, "r": 1}[strings.TrimSpace(text)]
		r.pd = min(max(r.pd+move, 0), *cols-1)
		r.row++
		if r.row == *rows-1 {
			r.done = true
			if r.pd == r.ball {
				r.reward = 1
			}
			return
		}
		r.reply, r.turnToks = r.reply[:0], 0
		r.pending = append([]int32{t}, append(msg("user", r.obs()), tok.GenerationPrompt()...)...)
		return
	}
	r.done = true
	truth := []rune(r.word)
	n := len(truth)
	right := 0
	special := false
	for i, id := range r.reply {
		c := 0.0
		if tok.IsSpecial(id) {
			special = true
		} else if i < n && tok.Decode([]int32{id}) == string(truth[n-1-i]) && !special {
			c = 1
			right++
		}
		r.chars = append(r.chars, c)
	}
	if eos {
		c := 0.0
		if len(r.reply) == n {
			c = 1
		}
		r.chars = append(r.chars, c)
	}
	r.reward = float64(right) / float64(max(n, len(r.reply)))
}

func run(d *lm.Decoder, rolls []*roll, temp float32, rng func(i int) func([]float32) (int32, float32)) {
	samp := make([]func([]float32) (int32, float32), len(rolls))
	live := []int{}
	next := 0
	v := d.Model().Config().VocabSize
	for {
		for next < len(rolls) {
			s, ok := d.Acquire()
			if !ok {
				break
			}
			rolls[next].slot = s
			rolls[next].begin()
			samp[next] = rng(next)
			live = append(live, next)
			next++
		}
		if len(live) == 0 {
			return
		}
		chunks := make([]lm.Chunk, len(live))
		for k, i := range live {
			r := rolls[i]
			chunks[k] = lm.Chunk{Slot: r.slot, Tokens: r.pending}
			from := 0
			if len(r.toks) > 0 {
				from = 1 // the sampled one is in already
			}
			for _, t := range r.pending[from:] {
				r.push(t, 0, 0)
			}
		}
		logits, err := d.Step(chunks)
		check(err)
		var still []int
		for k, i := range live {
			r := rolls[i]
			t, lp := samp[i](logits[k*v : (k+1)*v])
			r.sampled(t, lp)
			if r.done {
				d.Free(r.slot)
			} else {
				still = append(still, i)
			}
		}
		live = still
	}
}

func stat(x []float64) (mean, sd float64) {
	for _, v := range x {
		mean += v
	}
	mean /= float64(len(x))
	for _, v := range x {
		sd += (v - mean) * (v - mean)
	}
	return mean, math.Sqrt(sd / float64(len(x)))
}

func main() {
	flag.Parse()
	var err error
	tok, err = lm.NewTokenizer("abcdefghijklmnopqrstuvwxyz0123456789 .?-")
	check(err)
	rc := reversetext.Defaults()
	rc.MaxLength = *maxLen
	rt, err := reversetext.New(rc)
	check(err)
	words := map[env.Split][]string{}
	for _, sp := range []env.Split{env.Train, env.Eval} {
		n := rt.Info().Train
		if sp == env.Eval {
			n = rt.Info().Eval
		}
		for i := range n {
			raw, err := rt.Task(sp, i)
			check(err)
			var x struct{ Text string }
			check(json.Unmarshal(raw, &x))
			words[sp] = append(words[sp], x.Text)
		}
	}
	cfg := lm.NewConfig(tok.VocabSize(), *hid, *layers, *heads, *heads/2, 3**hid, 256)
	cfg.InitializerRange = *init_
	m, err := lm.New(cfg, *seed)
	check(err)
	np := 0
	for _, p := range m.Params() {
		np += len(p.Data)
	}
	fmt.Printf("vocab %d params %d train words %d eval %d\n", tok.VocabSize(), np, len(words[env.Train]), len(words[env.Eval]))
	l := lm.NewLearner(m)
	opt := lm.NewAdamW()
	opt.MaxNorm, opt.Beta2 = *clip, *beta2
	sch := lm.Schedule{Peak: *lr, Warmup: 10, Steps: *steps, Final: *final, Kind: *kind}
	check(sch.Validate())
	d, err := lm.NewDecoder(m, 256, 96)
	check(err)
	rng := lm.NewRNG(*seed * 1000)
	mk := func(e int, sp env.Split) *roll {
		if e == 0 {
			return &roll{env: 0, ball: rng.IntN(*cols), pd: rng.IntN(*cols)}
		}
		w := words[sp]
		return &roll{env: 1, word: w[rng.IntN(len(w))]}
	}
	var sampler lm.Sampler
	sampleAt := func(temp float32) func(int) func([]float32) (int32, float32) {
		return func(int) func([]float32) (int32, float32) {
			r := lm.NewRNG(rng.Uint64())
			return func(lg []float32) (int32, float32) { return sampler.Sample(lg, temp, 1, r) }
		}
	}
	eval := func(temp float32) string {
		var out string
		for e := range 2 {
			var rs []*roll
			for range 512 {
				rs = append(rs, mk(e, env.Eval))
			}
			run(d, rs, temp, sampleAt(temp))
			s, ex := 0.0, 0.0
			for _, r := range rs {
				s += r.reward
				if r.reward == 1 {
					ex++
				}
			}
			out += fmt.Sprintf(" %s %.3f (exact %.3f)", []string{"catch", "rev"}[e], s/512, ex/512)
		}
		return out
	}
	fmt.Println("start", eval(1))
	t0 := time.Now()
	var tg, tt time.Duration
	ntok := 0
	gen := m
	var hist []*lm.Model
	for step := 1; step <= *steps; step++ {
		a := time.Now()
		if *old > 0 {
			hist = append(hist, m.Clone())
			if len(hist) > *old+1 {
				hist = hist[1:]
			}
			gen = hist[0]
			check(d.SetModel(gen))
		}
		var rolls []*roll
		var groups [][]*roll
		for g := range *batch / *group {
			e := 0
			switch *mode {
			case "rev":
				e = 1
			case "mix":
				if float64(g) >= *share*float64(*batch / *group) {
					e = 1
				}
			}
			proto := mk(e, env.Train)
			var gr []*roll
			for range *group {
				c := *proto
				gr = append(gr, &c)
			}
			rolls = append(rolls, gr...)
			groups = append(groups, gr)
		}
		run(d, rolls, 1, sampleAt(1))
		var rew [2][]float64
		b := &lm.Batch{}
		masked := 0
		for _, gr := range groups {
			var rs []float64
			for _, r := range gr {
				rs = append(rs, r.reward)
				rew[r.env] = append(rew[r.env], r.reward)
			}
			mean, sd := stat(rs)
			e := gr[0].env
			any := false
			if e == 0 || *pos == "seq" {
				if sd > 0 {
					any = true
					for _, r := range gr {
						for i := range r.adv {
							r.adv[i] = float32((r.reward - mean) / sd)
						}
					}
				}
			} else {
				for p := 0; ; p++ {
					var x []float64
					for _, r := range gr {
						if p < len(r.chars) {
							x = append(x, r.chars[p])
						}
					}
					if len(x) == 0 {
						break
					}
					mean, sd := stat(x)
					if sd == 0 {
						continue
					}
					any = true
					if !*std {
						sd = 1
					}
					for _, r := range gr {
						if p < len(r.chars) {
							k := 0
							for i, mm := range r.mask {
								if mm == 1 {
									if k == p {
										r.adv[i] = float32((r.chars[p] - mean) / sd)
									}
									k++
								}
							}
						}
					}
				}
			}
			if !any {
				continue
			}
			for _, r := range gr {
				b.Tokens = append(b.Tokens, r.toks...)
				b.Mask = append(b.Mask, r.mask...)
				b.LogProbs = append(b.LogProbs, r.lp...)
				b.Advantages = append(b.Advantages, r.adv...)
				b.SeqLens = append(b.SeqLens, int32(len(r.toks)))
				for _, mm := range r.mask {
					masked += int(mm)
				}
			}
		}
		c := time.Now()
		tg += c.Sub(a)
		ntok += len(b.Tokens)
		rl := lm.DefaultRL(masked)
		rl.EntropyCoef = *ent * math.Max(0, 1-float64(step-1)/(float64(*steps)**entEnd))
		met, err := l.Accumulate(b, rl)
		check(err)
		info := l.Step(opt, sch.At(step))
		tt += time.Since(c)
		if step%*every == 0 || step == *steps {
			s0, _ := stat(append(rew[0], 0))
			s1, _ := stat(append(rew[1], 0))
			fmt.Printf("step %d catch %.3f rev %.3f ent %.3f norm %.2f kl %.4f  %.1fs (gen %.1f train %.1f)\n", step, s0, s1, met.MeanEntropy(), info.GradNorm, met.MeanMismatchKL(), time.Since(t0).Seconds(), tg.Seconds(), tt.Seconds())
		}
	}
	check(d.SetModel(m))
	fmt.Printf("SEED %d %s rollouts %d tokens %d %.1fs sampled%s | greedy%s\n", *seed, *mode, *steps**batch, ntok, time.Since(t0).Seconds(), eval(1), eval(0))
}
