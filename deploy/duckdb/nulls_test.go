package duckdb_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs"
)

// partial is an environment whose components apply now and then. One is for odd tasks only; none applies to a reply that has
// an l; and of a silent one none ever does.
type partial struct {
	name   string
	silent bool
}

func (p *partial) Info() env.Info {
	return env.Info{Name: p.name, Version: "1", Train: 64, Eval: 8, MaxTurns: 1, CutReplies: true}
}

func (p *partial) Task(_ env.Split, index int) (json.RawMessage, error) {
	return json.Marshal(map[string]int{"index": index})
}

func (p *partial) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	e := &part{partial: p}
	return e, json.Unmarshal(task, e)
}

type part struct {
	*partial
	Index int `json:"index"`
	reply string
}

func (p *part) Prompt() []env.Message { return []env.Message{env.User("1")} }

func (p *part) Reply(_ context.Context, m env.Message) (env.Turn, error) {
	p.reply = m.Content
	return env.Turn{Done: true}, nil
}

func (p *part) Score(context.Context) (env.Score, error) {
	s := env.Score{Rewards: env.Rewards{"digit": env.NotApplicable(1), "odd": env.NotApplicable(2)}, Metrics: map[string]float64{"length": float64(len(p.reply))}}
	if p.silent || strings.Contains(p.reply, "l") {
		return s, nil
	}
	s.Rewards["digit"] = env.Value(env.Bool(strings.ContainsAny(p.reply, "0123456789")))
	if p.Index%2 == 1 {
		s.Rewards["odd"] = env.Weighted(env.Bool(strings.HasPrefix(p.reply, "7")), 2)
	}
	return s, nil
}

// TestRewardsThatDoNotApply lets a whole run play three environments, of one of which some components do not apply to some
// rollouts and none to others, and of one none to any. They are null on the whole way, the baseline is that of the others, and
// nothing anywhere is NaN, nor 0 in place of nothing.
func TestRewardsThatDoNotApply(t *testing.T) {
	for _, p := range []*partial{{name: "patchy"}, {name: "silent", silent: true}} {
		envs.Registry[p.name] = func(func(any) error) (env.Environment, error) { return p, nil }
		t.Cleanup(func() { delete(envs.Registry, p.name) })
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cfg := stages.DefaultConfig()
	sets := []string{"dir=" + t.TempDir(), "inference.listen=localhost:0", "envs.catch.ratio=1", "run.max_steps=2", "run.batch_size=64", "evals.catch.examples=8"}
	for _, name := range []string{"patchy", "silent"} {
		sets = append(sets, "envs."+name+".ratio=1", "envs."+name+".group_size=8", "envs."+name+".max_tokens=2", "envs."+name+".max_rollout_tokens=64",
			"evals."+name+".env="+name, "evals."+name+".examples=8", "evals."+name+".interval=0")
	}
	if err := pipeline.LoadConfig("../../configs/ordered.toml", nil, sets, cfg); err != nil {
		t.Fatal(err)
	}
	app, err := stages.NewApp(cfg, cluster.ListenAddrs(), "all", slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := app.Close(); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := app.SetUp(ctx); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := app.RunAll(ctx, &out); err != nil {
		t.Fatal(err)
	}

	db := open(t, cfg.RunDir())
	// In traces: null, and not an error. What applies adds up.
	for _, c := range []struct{ what, query, want string }{
		{"silent rollouts have no reward", "SELECT count(*) > 0, count(reward), count(rewards['digit']), sum(len(errors)) FROM traces WHERE env = 'silent'", "true 0 0 0"},
		{"they say which components they have", "SELECT DISTINCT list_sort(map_keys(rewards)) FROM traces WHERE env = 'silent'", "[digit odd]"},
		{"patchy rollouts are of all kinds", `SELECT count(*) FILTER (reward IS NULL) > 0, count(*) FILTER (reward IS NOT NULL AND rewards['odd'] IS NULL) > 0,
			count(*) FILTER (rewards['odd'] IS NOT NULL) > 0, sum(len(errors)) FROM traces WHERE env = 'patchy'`, "true true true 0"},
		{"the reward is the sum of what applies", `SELECT count(*) FROM traces WHERE env = 'patchy' AND reward IS DISTINCT FROM
			CASE WHEN rewards['digit'] IS NULL THEN NULL ELSE rewards['digit'] + 2 * coalesce(rewards['odd'], 0) END`, "0"},
		// In scores: what has no reward has no sample, and the advantages of the others are around their own mean.
		{"nothing without a reward is trained", "SELECT count(*) FROM rollouts WHERE reward IS NULL AND fate = 'packed'", "0"},
		{"some of a group with one that has none are", `SELECT count(*) > 0 FROM rollouts r WHERE env = 'patchy' AND fate = 'packed' AND EXISTS
			(SELECT 1 FROM rollouts n WHERE n.env = r.env AND n.eval = '' AND n.group_id = r.group_id AND n.reward IS NULL)`, "true"},
		{"silent groups are decided, without rewards", "SELECT count(*) > 0, count(reward) FROM rollouts WHERE env = 'silent' AND eval = ''", "true 0"},
		{"no sample is of a rollout without reward", `SELECT count(*) FROM samples s JOIN traces t ON s.group_id = t.group_id AND s.rollout_index = t.rollout_index AND t.eval = ''
			WHERE t.reward IS NULL`, "0"},
		// In evals: means over what applies, and none where nothing does.
		{"a silent eval has no avg@k", "SELECT DISTINCT avg_at_k, pass_at_k, avg_stderr, episodes, errored, len(map_keys(rewards)), metrics['length'] > 0 FROM evals WHERE eval = 'silent'", "<nil> <nil> <nil> 8 0 0 true"},
		{"a patchy one has that of the rollouts with a reward", `SELECT count(*) > 0, bool_and(abs(e.avg_at_k - (SELECT avg(reward) FROM traces t WHERE t.eval = e.eval AND t.policy_start = e.version)) < 1e-9)
			FROM evals e WHERE eval = 'patchy'`, "true true"},
		// In metrics: no point of what there is not.
		{"no mean reward of silent rollouts", "SELECT count(*) FROM metrics WHERE contains(name, 'reward') AND labels['env'] = 'silent'", "0"},
		{"some of patchy ones", "SELECT count(*) > 0 FROM metrics WHERE contains(name, 'reward') AND labels['env'] = 'patchy'", "true"},
		// NaN nowhere.
		{"traces", "SELECT count(*) FROM (SELECT unnest(list_concat(map_values(rewards), map_values(metrics), [reward])) AS v FROM traces) WHERE isnan(v) OR isinf(v)", "0"},
		{"metrics", "SELECT count(*) FROM metrics WHERE isnan(value) OR isinf(value)", "0"},
		{"outcomes", "SELECT count(*) FROM rollouts WHERE isnan(reward) OR isinf(reward)", "0"},
		{"evals", `SELECT count(*) FROM (SELECT unnest(list_concat(map_values(rewards), map_values(metrics), [avg_at_k, pass_at_k, avg_stderr, pass_stderr])) AS v FROM evals)
			WHERE isnan(v) OR isinf(v)`, "0"},
	} {
		t.Run(c.what, func(t *testing.T) { expect(t, db, c.query, c.want) })
	}
	// What people and programs read.
	if text := out.String(); regexp.MustCompile(`(?i)\bnan\b`).MatchString(text) || !regexp.MustCompile(`(?m)^silent +8 +- +- `).MatchString(text) {
		t.Errorf("the end of the run says\n%s", text)
	}
	server := httptest.NewServer(promhttp.HandlerFor(app.Registry, promhttp.HandlerOpts{}))
	defer server.Close()
	resp, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || len(text) == 0 {
		t.Fatalf("%d bytes of metrics: %v", len(text), err)
	}
	if i := slices.IndexFunc(strings.Split(string(text), "\n"), func(l string) bool { return !strings.HasPrefix(l, "#") && strings.HasSuffix(l, "NaN") }); i >= 0 {
		t.Errorf("/metrics says %s", strings.Split(string(text), "\n")[i])
	}
}
