package envserver

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/bridge/verifiers"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Servers of the real package, in each of its wires, play rollouts at the endpoint: the trace has what was sampled, token by
// token, with the server's rewards.
func TestVerifiersAtTheEndpoint(t *testing.T) {
	for version, rewards := range map[string]map[string]float64{
		"0.4.0": {"correct": 1, "short": 1}, "0.2.1": {"correct": 2}, "0.1.14": {"reward": 2},
	} {
		t.Run(version, func(t *testing.T) {
			dir, err := filepath.Abs("../../.cache/verifiers-" + version)
			if err != nil {
				t.Fatal(err)
			}
			need.Verifiers(t, dir)
			cfg := verifiers.Defaults()
			cfg.Python, cfg.Path, cfg.Workers, cfg.EvalPercent = filepath.Join(dir, "bin", "python"), "bridge/verifiers/testdata/"+version, 1, 40
			h, err := verifiers.New("spelling", "spelling", t.TempDir(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer h.Close()
			index, word := pick(t, h)
			m := hears(tells(qwen3(t), backwards(word)+"<|im_end|>"))
			trace := playHost(t, h, m, func(task *schemas.Task) { task.TaskIndex, task.Temperature, task.TimeoutMs = int64(index), 1, 300_000 })
			scored(t, trace)
			exact(t, trace, m.made)
			if len(m.made) != 1 || len(trace.Nodes) != 2 || trace.Truncated || !strings.Contains(trace.Info, `"wire"`) {
				t.Errorf("%d calls, nodes %+v, truncated %v, info %s", len(m.made), trace.Nodes, trace.Truncated, trace.Info)
			}
			if len(trace.Rewards) != len(rewards) {
				t.Errorf("rewards %+v, want %v", trace.Rewards, rewards)
			}
			for name, v := range trace.Rewards {
				if v == nil || *v != rewards[name] {
					t.Errorf("reward %s is %v, want %v", name, v, rewards[name])
				}
			}
		})
	}
}

// pick is a training task of the words to be said backwards, in which nothing goes wrong.
func pick(t *testing.T, h env.Host) (index int, word string) {
	t.Helper()
	for i := range h.Info().Train {
		task, err := h.Task(env.Train, i)
		if err != nil {
			t.Fatal(err)
		}
		var row struct {
			Word, Fault string
			Info        struct{ Word string }
		}
		if err := json.Unmarshal(task, &row); err != nil {
			t.Fatal(err)
		}
		if row.Fault == "" {
			return i, row.Word + row.Info.Word
		}
	}
	t.Fatal("something goes wrong in every task")
	return 0, ""
}

func backwards(word string) string {
	var turned []byte
	for i := range len(word) {
		turned = append(turned, word[len(word)-1-i])
	}
	return string(turned)
}

// A server that sends tokens, which it has made of messages with the policy's tokenizer, leaves the same trace.
func TestVerifiersWithTokens(t *testing.T) {
	dir, err := filepath.Abs("../../.cache/verifiers-0.4.0")
	if err != nil {
		t.Fatal(err)
	}
	need.Verifiers(t, dir)
	tokenizer := t.TempDir()
	for name, text := range map[string]string{
		"tokenizer.json":        string(qwen3Tokenizer(t, "<|endoftext|>")),
		"tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast","eos_token":"<|im_end|>","pad_token":"<|endoftext|>"}`,
		"config.json":           `{"model_type":"qwen3"}`,
	} {
		if err := os.WriteFile(filepath.Join(tokenizer, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := verifiers.Defaults()
	cfg.Python, cfg.Path, cfg.Workers, cfg.EvalPercent = filepath.Join(dir, "bin", "python"), "bridge/verifiers/testdata/0.4.0", 1, 40
	cfg.Tokenizer, cfg.Renderer = tokenizer, "qwen3"
	h, err := verifiers.New("spelling", "spelling", t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	index, word := pick(t, h)
	m := hears(tells(qwen3(t), backwards(word)+"<|im_end|>"))
	var told env.Outcome
	spied := spy{h, &told}
	trace := playHost(t, spied, m, func(task *schemas.Task) { task.TaskIndex, task.Temperature, task.TimeoutMs = int64(index), 1, 300_000 })
	scored(t, trace)
	exact(t, trace, m.made)
	if len(told.Replies) != 1 || !slices.Equal(told.Replies[0], m.made[0].completion.Tokens) {
		t.Errorf("the server tells of replies %v", told.Replies)
	}
}

// spy keeps what a host says.
type spy struct {
	env.Host
	told *env.Outcome
}

func (s spy) Run(ctx context.Context, job env.Job) (env.Outcome, error) {
	out, err := s.Host.Run(ctx, job)
	*s.told = out
	return out, err
}
