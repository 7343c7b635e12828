package envserver

import (
	"context"
	"slices"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// TestOnly plays the tasks of an eval while those of training, of which one has ended without warning too often, wait:
// none is started or given up, and nothing is announced. Another server then plays them.
func TestOnly(t *testing.T) {
	rt, _, _ := testRun(t)
	tok := tokenizer(t)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(6, nil)...)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(4, func(_ int, t *schemas.Task) { t.Eval, t.Temperature = "mine", 0 })...)

	guest := *rt
	guest.Instance, guest.Leave = "guest", true
	s, err := New(&guest, DefaultConfig(), map[string]env.Environment{"game": &game{}}, says(tok, "hi"), nil)
	if err != nil {
		t.Fatal(err)
	}
	told := make(chan *schemas.EnvInfo, 1)
	s.Only(func(t *schemas.Task) bool { return t.Eval == "mine" }, func(info *schemas.EnvInfo) { told <- info })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for _, r := range read(t, rt, pipeline.TopicEvalTraces, count(4)) {
		scored(t, r.Value.(*schemas.Trace))
	}
	if info := <-told; info.Instance != "guest" || info.EvalTasks != 10 {
		t.Errorf("told of %+v", info)
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	stop := serveEnv(t, rt, &game{}, says(tok, "hi"))
	groups := groupsOf(read(t, rt, pipeline.TopicTraces, count(6)))
	stop()
	for _, r := range read(t, rt, pipeline.TopicTraces, count(6)) {
		if trace := r.Value.(*schemas.Trace); trace.Instance != "one" || groups[trace.GroupID] != 1 {
			t.Errorf("group %d has %d traces, one by %s", trace.GroupID, groups[trace.GroupID], trace.Instance)
		}
	}
	for _, r := range read(t, rt, pipeline.TopicEnvs, count(1)) {
		if info := r.Value.(*schemas.EnvInfo); info.Instance != "one" {
			t.Errorf("%s announced itself", info.Instance)
		}
	}
}

// What is not played is listed as not started, keeps its crashes and is not given up.
func TestOnlyListsTheOthers(t *testing.T) {
	bubble(t, 8, func(s *shell) {
		s.pool.plays = func(t *schemas.Task) bool { return t.GroupID%2 == 0 }
		c := s.core(encodeState([]entry{{1, true, 1}, {2, true, 0}, {5, true, 4}}))
		s.task(c, 0, 1, 2, 3, 5)
		state := s.commit(c)
		equal(s, "listed", entries(s.T, state), []entry{{0, true, 0}, {1, false, 2}, {2, true, 1}, {5, false, 5}})
		slices.Sort(s.started)
		equal(s, "started", s.started, []string{"0", "2"})
		s.end("0")
		s.end("2")
		finished, _ := s.tick(c)
		equal(s, "finished", finished, []int64{0, 2})
		if len(s.published) != 2 {
			s.Errorf("%d traces", len(s.published))
		}
	})
}
