package eval

import (
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Recorded games are played as they were, in their order, and each rollout of a game under a seed of its own; an eval of
// them that goes on knows them again, and other games when it sees them.
func TestRecordedGames(t *testing.T) {
	games := []Game{{schemas.SplitTrain, 7, 70}, {schemas.SplitEval, 1, 10}, {schemas.SplitTrain, 7, 71}}
	w := byHand(t, func(p *Plan) { p.Games, p.Config.Examples = games, len(games) })
	w.next(2, scripted)
	w.resume()
	w.next(-1, scripted)
	if len(w.results) != 1 || w.results[0].Examples != 3 || w.results[0].Errored != 0 {
		t.Fatalf("results %+v", w.results)
	}
	seeds := map[int64]bool{}
	for _, task := range w.held.tasks {
		if got := (Game{task.Split, task.TaskIndex, task.GroupSeed}); got != games[task.GroupID] {
			t.Errorf("group %d plays %+v, recorded was %+v", task.GroupID, got, games[task.GroupID])
		}
		seeds[task.Seed] = true
	}
	if len(w.held.tasks) != 3*w.plan.Config.K || len(seeds) != len(w.held.tasks) {
		t.Errorf("%d tasks with %d seeds", len(w.held.tasks), len(seeds))
	}
	run, _, envs, _ := sections()
	w.plan.Games = []Game{games[0], {schemas.SplitEval, 1, 11}, games[2]}
	if _, err := newHand(run, envs, w.plan, w.held); err == nil {
		t.Error("other games were taken for the same")
	}
}

// Recorded games of training need no held-out tasks.
func TestRecordedGamesWithoutHeldOutTasks(t *testing.T) {
	w := byHand(t, func(p *Plan) { p.Games, p.Config.Examples = []Game{{schemas.SplitTrain, 7, 70}}, 1 })
	if err := w.h.core.Table(pipeline.Record{Value: &schemas.EnvInfo{Env: "catch", Version: "1", TrainTasks: 8}}); err != nil {
		t.Fatal(err)
	}
	w.next(-1, scripted)
	if r := w.result(); r.Episodes != 2 {
		t.Errorf("result %+v", r)
	}
}
