package python

import (
	"encoding/json"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
)

// BenchmarkEpisode plays an episode of three calls in one process.
func BenchmarkEpisode(b *testing.B) {
	need.Python3(b)
	cfg := Defaults()
	cfg.Path, cfg.Processes = "testdata", 1
	e, err := New("mine", "lockbox:Lockbox", "", cfg)
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	for b.Loop() {
		s, err := env.Begin(b.Context(), e, json.RawMessage(`{"code":[1,2,3],"prompt":"Go."}`), 1)
		if err != nil {
			b.Fatal(err)
		}
		for range 3 {
			if _, err := s.Reply(b.Context(), env.Message{ToolCalls: []env.ToolCall{{Name: "turn", Arguments: `{"wheel":0,"digit":1}`}}}); err != nil {
				b.Fatal(err)
			}
		}
		if _, err := s.Score(b.Context()); err != nil {
			b.Fatal(err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
