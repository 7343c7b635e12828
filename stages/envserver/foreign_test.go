package envserver

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/bridge/python"
	"github.com/prl-project/prl/stages/envserver/env"
)

// pythonClass opens a class among those of the bridge's own tests.
func pythonClass(t *testing.T, class string) env.Environment {
	t.Helper()
	need.Python3(t)
	cfg := python.Defaults()
	cfg.Path, cfg.Processes = filepath.Join("bridge", "python", "testdata"), 1
	e, err := python.New("game", class, t.TempDir(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestPythonClass plays a class in Python: its tools are told, called and answered, and its reward is in the trace.
func TestPythonClass(t *testing.T) {
	call := func(json string) string { return "<tool_call>" + json + "</tool_call>" }
	m := says(tokenizer(t), call(`{"name": "turn", "arguments": {"wheel": 2, "digit": 7}}`), call(`{"name": "turn", "arguments": {"wheel": "x"}}`), "that is all")
	task := testTask()
	task.MaxTokens, task.MaxRolloutTokens = 500, 10_000
	trace := playOne(t, testPlayer(t, pythonClass(t, "lockbox:Lockbox"), m), task)
	scored(t, trace)
	if text := contents(trace); !strings.Contains(text, "tool:right") || !strings.Contains(text, "tool:error: arguments of turn: ") || !strings.Contains(text, "Set a wheel of the lock.") {
		t.Errorf("the conversation is %s", text)
	}
	if *trace.Reward < 1./3 || trace.Metrics["calls"] != 1 {
		t.Errorf("reward %v, metrics %v", *trace.Reward, trace.Metrics)
	}
}

// TestPythonTraceback has a class fail: the trace says where in Python that was.
func TestPythonTraceback(t *testing.T) {
	m := says(tokenizer(t), `<tool_call>{"name": "leave", "arguments": {}}</tool_call>`)
	task := testTask()
	task.Task, task.MaxTokens, task.MaxRolloutTokens = `{"who":"I"}`, 500, 10_000
	trace := playOne(t, testPlayer(t, pythonClass(t, "faulty:Faulty"), m), task)
	failed(t, trace, errorEnvironment, "SystemExit: 3")
	if got := trace.Errors[0].Traceback; !strings.Contains(got, "faulty.py") || !strings.Contains(got, "in leave") {
		t.Errorf("traceback %q", got)
	}
}
