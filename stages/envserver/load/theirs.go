package main

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/alphabetsort"
)

//go:embed sorting.py theirs.py
var scripts embed.FS

// playVerifiers lets one environment server of verifiers play, through the client of its package.
func playVerifiers(ctx context.Context, f flags, dir string, m *model) (result, error) {
	for _, name := range []string{"sorting.py", "theirs.py"} {
		data, err := scripts.ReadFile(name)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			return result{}, fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := writeTasks(ctx, filepath.Join(dir, "tasks.jsonl")); err != nil {
		return result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var ready struct {
		Address string `json:"address"`
	}
	cmd, err := python(ctx, f, dir, "serve", map[string]any{}, &ready)
	if err != nil {
		cancel()
		return result{}, err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	if err := m.forget(ctx); err != nil {
		return result{}, err
	}
	meter, err := newMeter(cmd.Process.Pid)
	if err != nil {
		return result{}, err
	}
	var came struct {
		Played, Failed int
		Why            string
		Seconds        float64
	}
	driver, err := python(ctx, f, dir, "drive", map[string]any{"address": ready.Address, "model": m.url, "at_once": f.PythonOnce,
		"rollouts": f.rollouts(f.PythonOnce), "nodes": 2 * turns, "tasks": filepath.Join(dir, "tasks.jsonl")}, &came)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = driver.Wait() }() // it has said all
	if came.Played == 0 {
		return result{}, fmt.Errorf("all %d rollouts of verifiers failed: %s", came.Failed, came.Why)
	}
	r := result{Server: "verifiers 0.4.0", Rollouts: came.Played, Failed: came.Failed, Took: time.Duration(came.Seconds * float64(time.Second))}
	if r.Usage, err = meter.read(); err != nil {
		return r, err
	}
	said, err := m.figures(ctx)
	r.AtOnce = said.Most
	return r, err
}

// python starts one of the scripts' processes and returns when it has said its line.
func python(ctx context.Context, f flags, dir, what string, order map[string]any, said any) (*exec.Cmd, error) {
	text, err := json.Marshal(order)
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, what+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, f.Python, filepath.Join(dir, "theirs.py"), what, string(text))
	cmd.Dir, cmd.Stderr = dir, log
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", f.Python, err)
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, said)
	}
	if err != nil {
		_ = cmd.Process.Kill() // it may have ended
		return nil, errors.Join(fmt.Errorf("%s %s says nothing that can be read: %w", f.Python, what, err), cmd.Wait())
	}
	return cmd, nil
}

// writeTasks writes what alphabet-sort says in a hundred of its tasks, a JSON object a line.
func writeTasks(ctx context.Context, file string) error {
	cfg := alphabetsort.Defaults()
	cfg.MinTurns, cfg.MaxTurns, cfg.Prompt = turns, turns, "full"
	e, err := alphabetsort.New(cfg)
	if err != nil {
		return err
	}
	var lines bytes.Buffer
	for i := range 100 {
		task, err := e.Task(env.Train, i)
		if err != nil {
			return err
		}
		s, err := env.Begin(ctx, e, task, 0)
		if err != nil {
			return err
		}
		row := map[string]any{"prompt": s.Prompt()[0].Content, "want": said}
		var later []string
		for range turns - 1 {
			turn, err := s.Reply(ctx, env.Assistant(said))
			if err != nil {
				return err
			}
			later = append(later, turn.Messages[0].Content)
		}
		row["later"] = later
		if err := errors.Join(json.NewEncoder(&lines).Encode(row), s.Close()); err != nil {
			return err
		}
	}
	return os.WriteFile(file, lines.Bytes(), 0o644)
}
