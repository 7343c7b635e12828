package ui

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/history"
	"github.com/prl-project/prl/stages/ui/index"
)

// searchTime is how long a search for text looks through files.
const searchTime = 900 * time.Millisecond

func (u *UI) getRollouts(r *http.Request) (any, error) {
	q, err := index.ParseQuery(r.URL.Query())
	if err != nil {
		return nil, problem{http.StatusBadRequest, err}
	}
	if text := r.URL.Query().Get("text"); text != "" {
		return u.search(r.Context(), q, text, r.URL.Query().Get("from"))
	}
	return u.model.rollouts.Find(q), nil
}

// A Search is the rollouts in which a text was said.
type Search struct {
	index.Result
	Searched int    `json:"searched"`       // of the files
	Files    int    `json:"files"`          // that there are
	From     string `json:"from,omitempty"` // where to go on; empty where everything was searched
}

// search looks for a text in the records in memory, then in the files from the newest on, from= where another search has
// stopped. It looks through whole files, and at least through one.
func (u *UI) search(ctx context.Context, q index.Query, text, from string) (s Search, err error) {
	contains := folded(text)
	until := u.now().Add(searchTime)
	wanted := u.model.rollouts.Set(q)
	hits := map[index.ID]bool{}
	hit := func(id index.ID) {
		if wanted.Has(id) && len(hits) < index.MaxLimit {
			hits[id] = true
		}
	}
	if from == "" {
		u.model.tail.traces(func(id index.ID, t *schemas.Trace) bool {
			if wanted.Has(id) && said(t, contains) {
				hit(id)
			}
			return ctx.Err() == nil
		})
	}
	files, err := u.traceFiles(q.Eval)
	if err != nil {
		return s, err
	}
	s.Files = len(files)
	begun := false
	for i, f := range files {
		s.Searched = i
		name := f.Path[strings.LastIndexByte(f.Path, '/')+1:]
		if from != "" && name != from {
			continue
		}
		from = ""
		if begun && (u.now().After(until) || len(hits) >= q.Limit) {
			s.From = name
			break
		}
		begun = true
		offsets, err := history.Texts(ctx, f, contains)
		if err != nil {
			return s, err
		}
		for _, o := range offsets {
			hit(index.ID{Eval: f.Topic == pipeline.TopicEvalTraces, Partition: f.Partition, Offset: o})
		}
		s.Searched = i + 1
	}
	s.Result = index.Result{Rows: u.model.rollouts.Rows(hits), Held: u.model.rollouts.Len(), Fates: map[string]int{}, Envs: map[string]int{}}
	s.Matches = len(s.Rows)
	slices.SortFunc(s.Rows, func(a, b index.Row) int { return b.Time.Compare(a.Time) })
	return s, nil
}

// traceFiles are the files with rollouts, newest first.
func (u *UI) traceFiles(eval string) ([]sink.File, error) {
	topics := []string{pipeline.TopicEvalTraces}
	switch eval {
	case "", "train":
		topics = []string{pipeline.TopicTraces}
	case "any":
		topics = append(topics, pipeline.TopicTraces)
	}
	var all []sink.File
	for _, topic := range topics {
		files, err := u.files.List(topic)
		if err != nil {
			return nil, err
		}
		all = append(all, files...)
	}
	slices.SortStableFunc(all, func(a, b sink.File) int { return b.Time.Compare(a.Time) })
	return all, nil
}

// folded finds a text whatever the case of its letters; beyond ASCII that costs more.
func folded(text string) func([]byte) bool {
	lower := bytes.ToLower([]byte(text))
	ascii := !slices.ContainsFunc(lower, func(b byte) bool { return b >= utf8.RuneSelf })
	if !ascii {
		return func(b []byte) bool { return bytes.Contains(bytes.ToLower(b), lower) }
	}
	first, upper := lower[0], bytes.ToUpper(lower)[0]
	return func(b []byte) bool {
		for len(b) >= len(lower) {
			i := bytes.IndexByte(b, first)
			if k := bytes.IndexByte(b, upper); upper != first && k >= 0 && (i < 0 || k < i) {
				i = k
			}
			if i < 0 || len(b)-i < len(lower) {
				return false
			}
			if asciiFold(b[i:i+len(lower)], lower) {
				return true
			}
			b = b[i+1:]
		}
		return false
	}
}

func asciiFold(b, lower []byte) bool {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != lower[i] {
			return false
		}
	}
	return true
}

// said reports whether something of a rollout is what is looked for.
func said(t *schemas.Trace, contains func([]byte) bool) bool {
	if contains([]byte(t.Task)) {
		return true
	}
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if contains([]byte(n.Content)) || contains([]byte(n.Reasoning)) {
			return true
		}
		for k := range n.ToolCalls {
			if contains([]byte(n.ToolCalls[k].Arguments)) {
				return true
			}
		}
	}
	return false
}

// trace finds the record of a rollout.
func (u *UI) trace(ctx context.Context, id index.ID) (*schemas.Trace, error) {
	if t, ok := find[*schemas.Trace](u.model.tail, id); ok {
		return t, nil
	}
	s, err := u.files.Record(ctx, id.Topic(), id.Partition, id.Offset)
	if errors.Is(err, history.ErrNotThere) {
		return nil, notFound("%s is not in the files of this run, nor among the newest records: the sink writes them within sink.max_age", id)
	}
	if err != nil {
		return nil, err
	}
	t, ok := s.Value.(*schemas.Trace)
	if !ok {
		return nil, notFound("%s is no rollout", id)
	}
	return t, nil
}

// samples finds what a group was made into; nil where that is not known.
func (u *UI) samples(ctx context.Context, group int64) (*schemas.SampleGroup, error) {
	if g, ok := find[*schemas.SampleGroup](u.model.tail, groupAt(group)); ok {
		return g, nil
	}
	list, err := u.files.Where(ctx, pipeline.TopicSamples, "group_id", group, 1)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	g, _ := list[0].(*schemas.SampleGroup)
	if g != nil {
		return g, u.rt.Redeem(ctx, g)
	}
	return nil, nil
}
