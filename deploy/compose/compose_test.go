package compose

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/deploy/deploytest"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages"
)

func TestMain(m *testing.M) { deploytest.Main(m) }

type project struct {
	Services map[string]service `json:"services"`
}

type service struct {
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment"`
	ReadOnly    bool              `json:"read_only"`
	Profiles    []string          `json:"profiles"`
	Ports       []struct {
		HostIP string `json:"host_ip"`
	} `json:"ports"`
	DependsOn   map[string]struct{ Condition string } `json:"depends_on"`
	HealthCheck struct {
		Test    []string
		Disable bool
	} `json:"healthcheck"`
	StopGracePeriod string `json:"stop_grace_period"`
	Volumes         []struct{ Type, Source, Target string }
	Deploy          struct {
		Resources struct{ Limits map[string]any }
	}
}

// load is the project as Docker's own loader reads it.
func load(t *testing.T) project {
	t.Helper()
	bin := need.Validators(t, deploytest.ValidatorsDir)
	out, err := exec.Command(filepath.Join(bin, "validators"), "compose", "compose.yaml", "tracing").Output()
	if err != nil {
		t.Fatalf("compose.yaml: %v", deploytest.Reason(err))
	}
	var p project
	if err := json.Unmarshal(out, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// stageOf is the stage that a service runs, empty for what is not prl.
func (s service) stageOf() string {
	if i := slices.Index(s.Command, "--stage"); i >= 0 {
		return s.Command[i+1]
	}
	return ""
}

// apart are the stages of the flow that a run does without, and that the file has no service for.
var apart = []string{"shadow", "export"}

// TestEveryStageIsAService: and is scraped by Prometheus.
func TestEveryStageIsAService(t *testing.T) {
	p := load(t)
	scraped, err := os.ReadFile("prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{stages.SetupName}
	for _, s := range stages.Flow {
		if slices.Contains(apart, s.Name) {
			continue
		}
		want = append(want, s.Name)
		if !strings.Contains(string(scraped), "- "+s.Name+":9090\n") {
			t.Errorf("%s is not scraped", s.Name)
		}
	}
	var got []string
	for name, s := range p.Services {
		if stage := s.stageOf(); stage != "" {
			got = append(got, stage)
			if stage != name {
				t.Errorf("the service %s runs the stage %s", name, stage)
			}
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("services of %v, the flow has %v", got, want)
	}
}

// TestPrlTakesItsArguments: flags, variables and configuration of every service.
func TestPrlTakesItsArguments(t *testing.T) {
	for name, s := range load(t).Services {
		if s.stageOf() == "" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := maps.Clone(s.Environment)
			env["PRL__DIR"] = t.TempDir()
			args := slices.Clone(s.Command)
			for _, v := range s.Volumes {
				if v.Type != "bind" {
					continue
				}
				if i := slices.Index(args, v.Target); i >= 0 {
					args[i] = v.Source
				}
			}
			if out, ok := deploytest.Accepts(t, args, env); !ok {
				t.Errorf("%v %v:\n%s", args, env, out)
			}
		})
	}
}

// TestServicesAreHeld: every stage waits for the topics, is asked whether it is ready, writes to its volumes alone, and has limits;
// nothing listens where other machines reach it.
func TestServicesAreHeld(t *testing.T) {
	for name, s := range load(t).Services {
		if len(s.Deploy.Resources.Limits) == 0 {
			t.Errorf("%s has no limits", name)
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s listens on %q", name, p.HostIP)
			}
		}
		stage := s.stageOf()
		if stage == "" {
			continue
		}
		if !s.ReadOnly {
			t.Errorf("%s may write to its image", name)
		}
		if stage == stages.SetupName {
			if s.DependsOn["kafka"].Condition != "service_healthy" {
				t.Errorf("%s waits for %v", name, s.DependsOn)
			}
			continue
		}
		if _, ok := s.DependsOn["inference"]; stage == "envserver" && !ok {
			t.Errorf("%s is stopped before what it asks: %v", name, s.DependsOn)
		}
		if s.DependsOn["setup"].Condition != "service_completed_successfully" {
			t.Errorf("%s waits for %v", name, s.DependsOn)
		}
		if want := []string{"CMD", "prl-stage", "--ready", "localhost:9090"}; !slices.Equal(s.HealthCheck.Test, want) || s.Environment["PRL__TELEMETRY"] != "0.0.0.0:9090" {
			t.Errorf("%s: %v at %s", name, s.HealthCheck.Test, s.Environment["PRL__TELEMETRY"])
		}
		grace, err := time.ParseDuration(s.StopGracePeriod)
		if drain, _ := time.ParseDuration(s.Environment["PRL__ENVSERVER__DRAIN"]); err != nil || grace <= drain {
			t.Errorf("%s: %v to stop, %v to drain, %v", name, grace, drain, err)
		}
	}
}

// TestPrometheusReadsItsConfiguration: as it is mounted, with the rules where it looks for them.
func TestPrometheusReadsItsConfiguration(t *testing.T) {
	bin := need.Validators(t, deploytest.ValidatorsDir)
	text, err := os.ReadFile("prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs("../prometheus")
	if err != nil {
		t.Fatal(err)
	}
	here := filepath.Join(t.TempDir(), "prometheus.yml")
	if err := os.WriteFile(here, []byte(strings.ReplaceAll(string(text), "/etc/prometheus/rules", rules)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(filepath.Join(bin, "promtool"), "check", "config", here).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "rules found") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestBrokerTakesWhatARunWrites: the settings that deploy/kafka starts its brokers with, and records as large as topics allow.
func TestBrokerTakesWhatARunWrites(t *testing.T) {
	env := load(t).Services["kafka"].Environment
	for key, want := range map[string]string{
		"KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false", "KAFKA_MESSAGE_MAX_BYTES": "16777216", "KAFKA_REPLICA_FETCH_MAX_BYTES": "16777216",
		"KAFKA_ADD_PARTITIONS_TO_TXN_RETRY_BACKOFF_MS": "1", "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1", "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
	} {
		if env[key] != want {
			t.Errorf("%s = %q, want %q", key, env[key], want)
		}
	}
}
