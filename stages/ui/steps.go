package ui

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strconv"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/index"
	"github.com/prl-project/prl/stages/ui/series"
)

// maxMicroBatches bounds what is read of one step.
const maxMicroBatches = 4096

// stepAnswer is a step for the page.
type stepAnswer struct {
	Step    int64           `json:"step"`
	First   int64           `json:"first"` // steps that there are
	Last    int64           `json:"last"`
	Version *series.Version `json:"version"` // that it made
	Figures []figure        `json:"figures"`
	Batches []microBatch    `json:"batches"` // by rank and index; empty where the step is not in the files
	Loss    []lossTokens    `json:"loss_tokens"`
	Groups  int             `json:"groups"`
	Note    string          `json:"note,omitempty"`
}

type lossTokens struct {
	Component string `json:"component"`
	Tokens    int64  `json:"tokens"`
}

type figure struct {
	Stage  string            `json:"stage"`
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Value  float64           `json:"value"`
}

type microBatch struct {
	Rank    int      `json:"rank"`
	Index   int      `json:"index"`
	Tokens  int      `json:"tokens"`
	Trained int      `json:"trained"` // in the policy gradient
	Samples []sample `json:"samples"`
}

type sample struct {
	ID        string   `json:"id,omitempty"` // of its rollout, where it is known
	Env       string   `json:"env"`
	Group     int64    `json:"group"`
	Task      *int64   `json:"task,omitempty"`
	Rollout   int      `json:"rollout"`
	Branch    int      `json:"branch"`
	Tokens    int      `json:"tokens"`
	Trained   int      `json:"trained"`
	Version   *int64   `json:"version"`
	OffPolicy *int64   `json:"off_policy"`
	Reward    *float64 `json:"reward"`
	Advantage *float64 `json:"advantage"` // mean over its trained tokens
}

func (u *UI) getStep(r *http.Request) (any, error) {
	step, err := strconv.ParseInt(r.PathValue("step"), 10, 64)
	if err != nil || step < 1 {
		return nil, badRequest("%q is no step: the first one is 1", r.PathValue("step"))
	}
	a := stepAnswer{Step: step, Figures: []figure{}, Batches: []microBatch{}, Loss: []lossTokens{}}
	u.model.locked(func() {
		for _, f := range u.model.run.At(step) {
			a.Figures = append(a.Figures, figure(f))
		}
		a.First, a.Last = u.model.run.Steps()
		if v, ok := u.model.run.Made(step); ok {
			a.Version = &v
		}
	})
	list, err := u.batches(r.Context(), step)
	if err != nil {
		return nil, err
	}
	groups := map[int64][]index.Row{}
	for _, b := range list {
		a.Batches = append(a.Batches, u.microBatch(b, groups))
		if len(a.Loss) == 0 {
			for _, l := range b.LossTokens {
				a.Loss = append(a.Loss, lossTokens{l.Component, l.Tokens})
			}
		}
	}
	a.Groups = len(groups)
	if len(list) == 0 {
		a.Note = "The batch of this step is not in the files, nor among the newest records."
	} else if want := list[0].Count * list[0].Ranks; len(list) < want {
		a.Note = "Of " + plural(int64(want), "micro-batch") + " these are in the files or among the newest records."
	}
	return a, nil
}

// batches are the micro-batches of a step, by rank and index. Their tensors may be in the blob store.
func (u *UI) batches(ctx context.Context, step int64) ([]*schemas.MicroBatch, error) {
	list := u.model.tail.batches(step)
	if len(list) == 0 || len(list) < list[0].Count*list[0].Ranks {
		records, err := u.files.Where(ctx, pipeline.TopicBatches, "step", step, maxMicroBatches)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if b, ok := r.(*schemas.MicroBatch); ok {
				list = append(list, b)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *schemas.MicroBatch) int { return cmp.Or(a.Rank-b.Rank, a.Index-b.Index) })
	return slices.CompactFunc(list, func(a, b *schemas.MicroBatch) bool { return a.Rank == b.Rank && a.Index == b.Index }), nil
}

func (u *UI) microBatch(b *schemas.MicroBatch, groups map[int64][]index.Row) microBatch {
	m := microBatch{Rank: b.Rank, Index: b.Index, Samples: []sample{}}
	at := 0
	for i, p := range b.Samples {
		s := sample{Env: p.Env, Group: p.GroupID, Rollout: p.RolloutIndex, Branch: p.Branch, Version: p.PolicyStart}
		if i < b.SeqLens.Len() {
			s.Tokens = int(b.SeqLens.At(i))
		}
		if p.PolicyStart != nil {
			s.OffPolicy = new(b.Step - 1 - *p.PolicyStart)
		}
		sum := 0.0
		for k := at; k < at+s.Tokens && k < len(b.Mask) && k < b.Advantages.Len(); k++ {
			if b.Mask[k] == 1 {
				s.Trained++
				sum += float64(b.Advantages.At(k))
			}
		}
		if s.Trained > 0 {
			s.Advantage = value(schemas.PackFloat32s([]float32{float32(sum / float64(s.Trained))}), 0, true)
		}
		at += s.Tokens
		m.Tokens, m.Trained = m.Tokens+s.Tokens, m.Trained+s.Trained
		if _, known := groups[p.GroupID]; !known {
			groups[p.GroupID] = u.model.rollouts.Group("", p.GroupID)
		}
		for _, row := range groups[p.GroupID] {
			if row.Rollout == p.RolloutIndex && (s.ID == "" || row.Fate == schemas.FatePacked) {
				s.ID, s.Task, s.Reward = row.ID, &row.Task, row.Reward
			}
		}
		m.Samples = append(m.Samples, s)
	}
	return m
}

func (u *UI) getStepTokens(r *http.Request) (any, error) {
	step, err := strconv.ParseInt(r.PathValue("step"), 10, 64)
	if err != nil {
		return nil, badRequest("%q is no step", r.PathValue("step"))
	}
	list, err := u.batches(r.Context(), step)
	if err != nil {
		return nil, err
	}
	const many = 1 << 30
	rank, err := atoi(r, "rank", many)
	at, err2 := atoi(r, "index", many)
	if err := cmp.Or(err, err2); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(list, func(b *schemas.MicroBatch) bool { return b.Rank == rank && b.Index == at })
	if i < 0 {
		return nil, notFound("micro-batch %d of rank %d of step %d is not in the files, nor among the newest records", at, rank, step)
	}
	b := list[i]
	if err := u.redeem(r.Context(), b); err != nil {
		return nil, err
	}
	wanted, err := atoi(r, "sample", b.SeqLens.Len())
	if err != nil {
		return nil, err
	}
	start := 0
	for k := range wanted {
		start += int(b.SeqLens.At(k))
	}
	a := tokensAnswer{Total: int(b.SeqLens.At(wanted))}
	if a.From, err = atoi(r, "from", a.Total+1); err != nil {
		return nil, err
	}
	for k := start + a.From; k < start+min(a.Total, a.From+maxTokens) && k < len(b.Mask); k++ {
		trained := b.Mask[k] == 1
		a.IDs, a.Mask = append(a.IDs, int(b.TokenIDs.At(k))), append(a.Mask, int(b.Mask[k]))
		a.Logprobs, a.Advantages = append(a.Logprobs, value(b.Logprobs, k, trained)), append(a.Advantages, value(b.Advantages, k, trained))
		a.Trained = append(a.Trained, int(b.Mask[k]))
		if b.RefLogprobs.Len() > 0 {
			a.RefLogprobs = append(a.RefLogprobs, value(b.RefLogprobs, k, true))
		}
	}
	a.Text, a.Note = u.texts(r.Context(), a.IDs)
	return a, nil
}
