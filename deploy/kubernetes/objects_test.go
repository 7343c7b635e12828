package kubernetes

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/deploy/deploytest"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

func TestMain(m *testing.M) { deploytest.Main(m) }

// An object is a manifest, as far as these tests look into it.
type object struct {
	Kind     string `json:"kind"`
	Metadata meta   `json:"metadata"`
	Spec     struct {
		Selector        json.RawMessage `json:"selector"`
		Template        *template       `json:"template"`
		Ports           []port          `json:"ports"`
		Completions     int             `json:"completions"`
		MinAvailable    *int            `json:"minAvailable"`
		MaxUnavailable  *int            `json:"maxUnavailable"`
		Replicas        *int            `json:"replicas"`
		ServiceName     string          `json:"serviceName"`
		ScaleTargetRef  struct{ Kind, Name string }
		MaxReplicaCount int
		Triggers        []struct{ Metadata map[string]string }
		PodSelector     labelSelector
		PolicyTypes     []string
		Ingress, Egress []rule
		Authorization   struct {
			ACLs []struct {
				Resource   struct{ Type, Name, PatternType string }
				Operations []string
			}
		}
	} `json:"spec"`
	Data                         map[string]string `json:"data"`
	AutomountServiceAccountToken *bool             `json:"automountServiceAccountToken"`
}

type meta struct {
	Name        string            `json:"name"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type labelSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

func (s labelSelector) matches(labels map[string]string) bool {
	for k, v := range s.MatchLabels {
		if labels[k] != v {
			return false
		}
	}
	return true
}

type template struct {
	Metadata meta `json:"metadata"`
	Spec     struct {
		ServiceAccountName            string      `json:"serviceAccountName"`
		AutomountServiceAccountToken  *bool       `json:"automountServiceAccountToken"`
		TerminationGracePeriodSeconds int         `json:"terminationGracePeriodSeconds"`
		InitContainers                []container `json:"initContainers"`
		Containers                    []container `json:"containers"`
		Volumes                       []volume    `json:"volumes"`
		SecurityContext               struct{ RunAsNonRoot bool }
	} `json:"spec"`
}

type container struct {
	Name                                        string     `json:"name"`
	Image                                       string     `json:"image"`
	Args                                        []string   `json:"args"`
	Env                                         []variable `json:"env"`
	Ports                                       []port     `json:"ports"`
	VolumeMounts                                []struct{ Name, MountPath string }
	Resources                                   struct{ Limits map[string]string }
	StartupProbe, LivenessProbe, ReadinessProbe *struct{ HTTPGet struct{ Path, Port string } }
	SecurityContext                             struct {
		ReadOnlyRootFilesystem   bool
		AllowPrivilegeEscalation *bool
	}
}

type variable struct {
	Name, Value string
	ValueFrom   *struct {
		SecretKeyRef *struct{ Name, Key string }
		FieldRef     *struct{ FieldPath string }
	}
}

type port struct {
	Name          string `json:"name"`
	ContainerPort int    `json:"containerPort"`
	Port          any    `json:"port"`
	TargetPort    any    `json:"targetPort"`
	Protocol      string `json:"protocol"`
}

type volume struct {
	Name      string
	ConfigMap *struct{ Name string }
	Secret    *struct {
		SecretName string
		Items      []struct{ Key, Path string }
	}
	PersistentVolumeClaim *struct{ ClaimName string }
}

// values are the files with which the chart is rendered in the tests; none is with its own values.
var values = map[string][]string{
	"defaults": nil,
	"minimal":  {"testdata/minimal.yaml"},
	"full":     {"testdata/full.yaml"},
	"gpu":      {"testdata/gpu.yaml"},
	"both":     {"testdata/full.yaml", "testdata/gpu.yaml"},
}

// rendered are the manifests by values, so that each test has them anew without rendering them again.
var rendered sync.Map

// render lints, renders and validates the chart, and gives the manifests.
func render(t *testing.T, files ...string) []object {
	t.Helper()
	key := strings.Join(files, " ")
	out, _ := rendered.Load(key)
	if out == nil {
		manifests, wrong := validate(t, files...)
		if manifests == nil {
			t.Fatalf("%v: %s", files, wrong)
		}
		out = manifests
		rendered.Store(key, out)
	}
	var list []object
	if err := json.Unmarshal(out.([]byte), &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// validate gives the manifests, or nil and what is wrong.
func validate(t *testing.T, files ...string) (manifests []byte, wrong string) {
	t.Helper()
	bin := need.Validators(t, deploytest.ValidatorsDir)
	cmd := exec.Command(filepath.Join(bin, "validators"), append([]string{"chart", "prl"}, files...)...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, errs.String()
	}
	return out.Bytes(), ""
}

// workloads are the manifests that make pods.
func workloads(list []object) []object {
	return slices.DeleteFunc(slices.Clone(list), func(o object) bool { return o.Spec.Template == nil })
}

// of are those of a kind.
func of(list []object, kind string) []object {
	return slices.DeleteFunc(slices.Clone(list), func(o object) bool { return o.Kind != kind })
}

// stage is the stage that a workload's pods run.
func (o object) stage() string { return o.Spec.Template.Metadata.Labels["prl/stage"] }
