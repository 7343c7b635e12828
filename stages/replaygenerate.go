package stages

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/replay"
	"github.com/prl-project/prl/stages/trainer"
)

// regenerate gives the recorded tasks of an environment to another policy: an eval by hand in a run of its own, which has
// that policy version of the app's run and nothing else of it.
func (a *App) regenerate(ctx context.Context, out io.Writer, src replay.Source, r Replay) error {
	b, h := r.Into, r.Eval
	if b == nil {
		return fmt.Errorf("replay to regenerate: --into names the run that is played in")
	}
	published, err := replay.Policies(ctx, src)
	if err != nil {
		return fmt.Errorf("replay to regenerate: %w", err)
	}
	version, err := a.chosen(published, h.Policy)
	if err != nil {
		return err
	}
	if h.Policy == eval.Latest {
		h.Policy = strconv.FormatInt(version.Version, 10)
	}
	show, end := r.progress()
	all, refused, err := replay.GamesOf(ctx, src, r.Topic, r.Select, show)
	end()
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(all))
	if suite, ok := a.Config.Evals[h.Suite]; ok && h.Env == "" {
		h.Env = suite.Env
	}
	if h.Env == "" && len(names) == 1 {
		h.Env = names[0]
	}
	games := all[h.Env]
	if games == nil {
		return fmt.Errorf("replay to regenerate: --env %q: tasks of one environment are played, and those of %v are selected", h.Env, names)
	}
	h.Games, h.Alone = games.Games, true
	was := fmt.Sprintf("%d distinct tasks of %s; recorded of them: reward %.4f, the mean of %d rollouts", len(games.Games), h.Env, games.Reward, games.Rollouts)
	if refused > 0 {
		was += fmt.Sprintf("; %d traces cannot be read and are passed over", refused)
	}
	if r.DryRun {
		fmt.Fprintf(out, "%s\nwould play them with policy %s in run %s\n", was, h.Policy, b.Config.Run.Name)
		return nil
	}
	if err := b.SetUp(ctx); err != nil {
		return err
	}
	if err := trainer.BeginToPlay(ctx, b.Runtime, a.Config.Run.Name, a.Runtime.Blobs, published, version); err != nil {
		return err
	}
	fmt.Fprintln(out, was)
	return b.RunEvalByHand(ctx, out, h)
}

// chosen is the version that a policy names: the newest, one of a number, or for a frozen policy any.
func (a *App) chosen(published []*schemas.PolicyVersion, policy string) (*schemas.PolicyVersion, error) {
	newest := published[len(published)-1]
	if _, frozen := a.Config.Frozen[policy]; frozen || policy == eval.Latest {
		return newest, nil
	}
	for _, v := range published {
		if strconv.FormatInt(v.Version, 10) == policy {
			return v, nil
		}
	}
	return nil, fmt.Errorf("no policy %q: there are %s, the versions %d to %d, and the sections [frozen.<name>]: %v",
		policy, eval.Latest, published[0].Version, newest.Version, slices.Sorted(maps.Keys(a.Config.Frozen)))
}
