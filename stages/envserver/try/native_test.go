package try

import (
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver/envs/catch"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
)

// TestNative plays catch with a small model that prl's own inference server has, and again with the same seed.
func TestNative(t *testing.T) {
	tok, err := lm.NewTokenizer("abcdefghijklmnopqrstuvwxyz0123456789. ?")
	if err != nil {
		t.Fatal(err)
	}
	m, err := lm.New(lm.NewConfig(tok.VocabSize(), 16, 2, 2, 1, 32, 96), 1)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := lm.SaveFolder(filepath.Join(dir, "model"), m, tok); err != nil {
		t.Fatal(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	blobs, err := pipeline.OpenBlobs(filepath.Join(dir, "blobs"))
	if err != nil {
		t.Fatal(err)
	}
	run := pipeline.DefaultRunConfig()
	rt := &pipeline.Runtime{Run: run, Brokers: cluster.ListenAddrs(), Instance: "one", Blobs: blobs, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Health: &pipeline.Health{}}
	if err := rt.SetUp(t.Context(), []string{"catch"}); err != nil {
		t.Fatal(err)
	}
	cfg := inference.DefaultConfig()
	cfg.Listen = "localhost:0"
	server, err := inference.New(rt, cfg, map[string]inference.FrozenConfig{"old": {Folder: filepath.Join(dir, "model")}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	<-server.Listening()
	e, err := catch.New(catch.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + server.Addr().String()
	const n = 12
	var said [2]strings.Builder
	for k := range said {
		r := tries(t, e, url, n)
		seed := int64(7)
		r.Server.Model, r.Sampling.MaxTokens, r.Sampling.Seed = "old", 1, &seed
		results, summary, err := do(t, r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			res := results[i]
			if res.Reward == nil || res.CompletionTokens != res.Replies || res.PromptTokens == 0 {
				t.Errorf("%+v", res)
			}
			for _, m := range res.Messages {
				said[k].WriteString(m.Content + "\n")
			}
		}
		if !strings.Contains(summary, "12 scored, 0 failed") {
			t.Error(summary)
		}
	}
	if said[0].String() != said[1].String() {
		t.Errorf("two runs of a seed differ:\n%s\n%s", said[0].String(), said[1].String())
	}
}
