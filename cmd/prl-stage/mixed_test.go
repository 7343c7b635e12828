package main

import (
	"context"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages"
)

// What TestMixed plays.
var mixedRatios = map[string]int{"catch": 2, "larger": 1, "guess": 1}

const mixedSteps = 3

// TestMixed trains on three environments, mixed by ratio: one of the package verifiers, whose server the bridge starts; one of a
// server of OpenEnv; and one in Go. One of the Python processes is killed while it holds rollouts in their middle. The run ends by
// itself with all of them trained, everything holds that must, and the weights are the same whichever process was killed.
func TestMixed(t *testing.T) {
	t.Parallel()
	root := repository(t)
	verifiers, openenv := filepath.Join(root, ".cache/verifiers-0.4.0"), filepath.Join(root, ".cache/openenv")
	need.Verifiers(t, verifiers)
	need.OpenEnv(t, openenv)
	weights := map[string]string{}
	for _, victim := range []string{"larger", "guess"} {
		t.Run(victim, func(t *testing.T) {
			dir := t.TempDir()
			held := map[string]string{victim: filepath.Join(dir, "held")}
			server := &openEnvServer{python: filepath.Join(openenv, "bin", "python"), port: freePort(t)}
			server.start(t, held["guess"])
			sets := []string{
				fmt.Sprintf("run.max_steps=%d", mixedSteps), "run.batch_size=16", `model.alphabet="0123456789lsr"`, "envserver.env_timeout=3m",
				`scorer.filters.zero_advantage.mode="monitor"`, fmt.Sprintf("envs.catch.ratio=%d", mixedRatios["catch"]), "envs.catch.group_size=4",
				fmt.Sprintf(`envs.larger={source = "verifiers:held_larger", ratio = %d, group_size = 4, max_tokens = 2, options = {python = %q, path = %q, workers = 1}}`,
					mixedRatios["larger"], filepath.Join(verifiers, "bin", "python"), filepath.Join(root, "cmd/prl-stage/testdata/mixed")),
				fmt.Sprintf(`envs.guess={source = "openenv:http://127.0.0.1:%s", ratio = %d, group_size = 4, max_tokens = 32, options = {start_s = 180, timeout_s = 150}}`,
					server.port, mixedRatios["guess"]),
			}
			p := all(t, dir, []string{"MIXED_HELD=" + held["larger"]}, sets...)
			pid := heldBy(t, p, held[victim])
			if victim == "guess" && pid != server.cmd.Process.Pid {
				t.Fatalf("process %d holds rollouts, want that of the server, %d", pid, server.cmd.Process.Pid)
			}
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if victim == "guess" {
				server.start(t, held["guess"])
			}
			weights[victim] = finalWeights(t, p.ended(t, 2*runDeadline))
			audit(t, dir, "test", sets...)
			mixedRecords(t, dir, sets, victim)
			if victim == "larger" {
				log, err := os.ReadFile(filepath.Join(dir, "test", "logs", "larger.log"))
				if said := fmt.Sprintf("process %d: signal: killed", pid); err != nil || !strings.Contains(string(log), said) {
					t.Errorf("no %q in the environment's log: %v\n%s", said, err, tail(string(log), 2000))
				}
			}
		})
	}
	if weights["larger"] != weights["guess"] {
		t.Errorf("the weights depend on which process was killed: %v", weights)
	}
}

// heldBy waits for the process that holds rollouts in their middle.
func heldBy(t *testing.T, p *process, file string) (pid int) {
	t.Helper()
	deadline := time.After(runDeadline)
	for {
		text, err := os.ReadFile(file)
		if err == nil {
			pid, err = strconv.Atoi(string(text))
			if err != nil {
				t.Fatal(err)
			}
			return pid
		}
		select {
		case <-deadline:
			t.Fatal("no process holds rollouts")
		case <-p.done:
			t.Fatal("the run has ended before a process held rollouts")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// openEnvServer is a server of OpenEnv. It ends with its standard input, and so with this process.
type openEnvServer struct {
	python, port string
	cmd          *exec.Cmd
}

// start starts it, again if it was killed. It may be asked before it listens.
func (s *openEnvServer) start(t *testing.T, held string) {
	t.Helper()
	if s.cmd != nil {
		if err := s.cmd.Wait(); s.cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatalf("the server ended with %v, not by SIGKILL", err)
		}
	}
	cmd := exec.Command(s.python, filepath.Join(repository(t), "cmd/prl-stage/testdata/mixed/held_guess.py"), s.port)
	cmd.Env = append(os.Environ(), "MIXED_HELD="+held)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.cmd = cmd
	t.Cleanup(func() {
		if s.cmd == cmd {
			_, _ = in.Close(), cmd.Process.Kill()
			_ = cmd.Wait() // it says that it was killed
		}
	})
}

// freePort is a port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// mixedRecords looks at what the run has recorded: the victim's rollouts failed and were played again, each environment was
// emitted by its ratio and trained, and what the policy sampled is there token by token.
func mixedRecords(t *testing.T, dir string, sets []string, victim string) {
	t.Helper()
	failed, replies, groups, packed := map[string]int{}, map[string]int{}, map[string]int{}, map[string]int{}
	total, ratios := 0, 0
	withServed(t, dir, "test", sets, func(ctx context.Context, app *stages.App) {
		rt := app.Runtime
		spans, err := rt.Spans(ctx, true, pipeline.TopicTraces, pipeline.TopicOutcomes, pipeline.TopicMetrics)
		if err == nil {
			err = rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
				if r.Attrs.IsControl() {
					return nil
				}
				rec, err := rt.Decode(ctx, r)
				switch v := rec.Value.(type) {
				case *schemas.Trace:
					if len(v.Errors) > 0 {
						failed[v.Env]++
						break
					}
					replies[v.Env] += sampledReplies(t, v)
				case *schemas.GroupOutcome:
					if v.Eval != "" {
						break
					}
					groups[v.Env]++
					total++
					for _, f := range v.Rollouts {
						if f.Fate == "packed" {
							packed[v.Env]++
						}
					}
				case *schemas.MetricPoint:
					// The trainer's own log-probabilities of what was sampled: strictly on-policy they are those that were recorded.
					if v.Name != "ratio" {
						break
					}
					if ratios++; math.Abs(v.Value-1) > 1e-5 {
						t.Errorf("step %d: %s is %v", *v.Step, v.Name, v.Value)
					}
				}
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("groups %v, rollouts packed %v, failed %v, replies %v", groups, packed, failed, replies)
	if ratios != mixedSteps {
		t.Errorf("the trainer says %d ratios of policies, want one for each of %d steps", ratios, mixedSteps)
	}
	for env, ratio := range mixedRatios {
		if packed[env] == 0 || replies[env] < packed[env] {
			t.Errorf("%s: %d rollouts trained, with %d replies", env, packed[env], replies[env])
		}
		// They are drawn, by the same seed each time.
		if share := float64(ratio*total) / 4; math.Abs(float64(groups[env])-share) > share/2 {
			t.Errorf("%s: %d of %d groups, its share is %v", env, groups[env], total, share)
		}
		if env == victim && failed[env] < 2 || env != victim && failed[env] > 0 {
			t.Errorf("%s: %d rollouts failed", env, failed[env])
		}
	}
}

// sampledReplies counts the messages that the policy wrote in a rollout without error, and holds them to be all there: tokens,
// masks, log-probabilities and versions.
func sampledReplies(t *testing.T, trace *schemas.Trace) (n int) {
	t.Helper()
	name := fmt.Sprintf("%s: group %d, rollout %d", trace.Env, trace.GroupID, trace.RolloutIndex)
	if trace.Reward == nil || trace.PolicyStart == nil {
		t.Errorf("%s: reward %v, policy_start %v", name, trace.Reward, trace.PolicyStart)
	}
	if trace.Env == "larger" && (len(trace.Rewards) != 2 || !strings.Contains(trace.Info, `"wire":"0.4.0"`)) {
		t.Errorf("%s: rewards %v, info %.200s", name, trace.Rewards, trace.Info)
	}
	for i, node := range trace.Nodes {
		sampled := 0
		for k, m := range node.Mask {
			if l := node.Logprobs.At(k); m == 1 {
				sampled++
				if !(l < 0) || math.IsInf(float64(l), 0) {
					t.Errorf("%s: node %d: log-probability %v of sampled token %d", name, i, l, k)
				}
			} else if l != 0 {
				t.Errorf("%s: node %d: log-probability %v of token %d, which was not sampled", name, i, l, k)
			}
		}
		// What the environment said last is no token of anything where the rollout ended with it.
		unseen := node.Role != "assistant" && i == len(trace.Nodes)-1
		if len(node.Mask) != node.TokenIDs.Len() || len(node.Mask) != node.Logprobs.Len() || len(node.Mask) == 0 && !unseen {
			t.Errorf("%s: node %d has %d tokens, a mask of %d and %d log-probabilities", name, i, node.TokenIDs.Len(), len(node.Mask), node.Logprobs.Len())
		}
		if said := node.Role == "assistant"; said != (sampled > 0) || said != (len(node.Versions) > 0) || said != (node.Temperature == 1) {
			t.Errorf("%s: node %d of role %s: %d sampled tokens, versions %v, temperature %v", name, i, node.Role, sampled, node.Versions, node.Temperature)
		}
		n += min(sampled, 1)
	}
	if n == 0 {
		t.Errorf("%s: the policy sampled nothing", name)
	}
	return n
}
