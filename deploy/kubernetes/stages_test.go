package kubernetes

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/deploy/deploytest"
	"github.com/prl-project/prl/stages"
)

// apart are the stages of the flow that a run does without, and that the chart has no workload for.
var apart = []string{"shadow", "export"}

// TestEveryStageHasAWorkload: the chart knows all stages of the flow, and no other.
func TestEveryStageHasAWorkload(t *testing.T) {
	want := []string{stages.SetupName}
	for _, s := range stages.Flow {
		if !slices.Contains(apart, s.Name) {
			want = append(want, s.Name)
		}
	}
	slices.Sort(want)
	has := map[string]bool{}
	for _, o := range workloads(render(t, "testdata/full.yaml")) {
		has[o.stage()] = true
	}
	if got := slices.Sorted(maps.Keys(has)); !slices.Equal(got, want) {
		t.Errorf("workloads of %v, the flow has %v", got, want)
	}
}

// TestPrlTakesItsArguments: the binary accepts flags, variables and configuration of every container, as the kubelet would give them.
func TestPrlTakesItsArguments(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			list := render(t, files...)
			for _, o := range workloads(list) {
				t.Run(o.Metadata.Name, func(t *testing.T) {
					t.Parallel()
					args, env := started(t, list, o)
					if out, ok := deploytest.Accepts(t, args, env); !ok {
						t.Errorf("%v %v:\n%s", args, env, out)
					}
				})
			}
		})
	}
	// It notices what is wrong.
	list := render(t)
	args, env := started(t, list, workloads(list)[0])
	if out, ok := deploytest.Accepts(t, append(args, "--rank", "one"), env); ok {
		t.Errorf("a wrong flag is taken: %s", out)
	}
	env["PRL__KAFKA__TLZ"] = "true"
	if out, ok := deploytest.Accepts(t, args, env); ok {
		t.Errorf("a wrong variable is taken: %s", out)
	}
}

// started is how the process of a stage's first pod is started.
func started(t *testing.T, list []object, o object) (args []string, env map[string]string) {
	t.Helper()
	return startedAs(t, list, o, 0)
}

// startedAs is how the process in one of a stage's pods is started: the configuration and the secrets that its volumes mount lie in a folder of the test.
func startedAs(t *testing.T, list []object, o object, number int) (args []string, env map[string]string) {
	t.Helper()
	pod := o.Spec.Template.Spec
	c := pod.Containers[slices.IndexFunc(pod.Containers, func(c container) bool { return c.Name == "stage" })]
	dir := t.TempDir()
	mounted := map[string]string{"/runs": filepath.Join(dir, "runs"), "/weights": filepath.Join(dir, "weights")}
	write := func(path, text string) {
		t.Helper()
		file := filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		mounted[path] = file
	}
	for _, m := range c.VolumeMounts {
		v := pod.Volumes[slices.IndexFunc(pod.Volumes, func(v volume) bool { return v.Name == m.Name })]
		switch {
		case v.ConfigMap != nil:
			config := ""
			for _, o := range of(list, "ConfigMap") {
				if o.Metadata.Name == v.ConfigMap.Name {
					config = o.Data[filepath.Base(m.MountPath)]
				}
			}
			write(m.MountPath, config)
		case v.Secret != nil:
			for _, item := range v.Secret.Items {
				write(filepath.Join(m.MountPath, item.Path), "secret")
			}
		}
	}
	env = map[string]string{}
	for _, v := range c.Env {
		value := v.Value
		if v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
			value = "secret"
		} else if v.ValueFrom != nil && v.ValueFrom.FieldRef != nil {
			value = map[string]string{
				"metadata.name": fmt.Sprint(o.Metadata.Name, "-", number),
				"metadata.annotations['batch.kubernetes.io/job-completion-index']": strconv.Itoa(max(o.Spec.Completions-1, 0)),
				"metadata.labels['apps.kubernetes.io/pod-index']":                  strconv.Itoa(number),
			}[v.ValueFrom.FieldRef.FieldPath]
			if value == "" {
				t.Fatalf("%s: variable %s of field %s", o.Metadata.Name, v.Name, v.ValueFrom.FieldRef.FieldPath)
			}
		}
		for at, here := range mounted {
			if value == at {
				value = here
			}
		}
		if strings.HasPrefix(value, "/etc/prl/") {
			t.Errorf("%s: %s = %s is not mounted", o.Metadata.Name, v.Name, value)
		}
		env[v.Name] = referred(value, env)
	}
	for _, arg := range c.Args {
		arg = referred(arg, env)
		if here, ok := mounted[arg]; ok {
			arg = here
		}
		args = append(args, arg)
	}
	return args, env
}

// referred puts the values of variables into a text that refers to them, of those that stand before it, as the kubelet does.
func referred(text string, env map[string]string) string {
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		if value, there := env[reference.FindStringSubmatch(r)[1]]; there {
			return value
		}
		return r
	})
}

// TestSinksShareTheWork: as many sinks as there are divide the partitions, each by its number, and one that is alone has all.
func TestSinksShareTheWork(t *testing.T) {
	for name, want := range map[string][]string{"full": {"0/3", "1/3", "2/3"}, "defaults": {""}} {
		list := render(t, values[name]...)
		for _, o := range workloads(list) {
			if o.stage() != "sink" {
				continue
			}
			var got []string
			for pod := range *o.Spec.Replicas {
				_, env := startedAs(t, list, o, pod)
				got = append(got, env["PRL__SINK__SHARE"])
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: the sinks have the shares %q, want %q", name, got, want)
			}
		}
	}
}

// TestScalingDownFinishesRollouts: a pod of an environment server has the time that its rollouts are given, and gives its partitions up.
func TestScalingDownFinishesRollouts(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			for _, o := range workloads(render(t, files...)) {
				if o.stage() != "envserver" {
					continue
				}
				c := o.Spec.Template.Spec.Containers[0]
				var drain time.Duration
				for _, v := range c.Env {
					if v.Name == "PRL__ENVSERVER__DRAIN" {
						drain, _ = time.ParseDuration(v.Value)
					}
				}
				grace := time.Duration(o.Spec.Template.Spec.TerminationGracePeriodSeconds) * time.Second
				if drain == 0 || grace < drain+30*time.Second || !slices.Contains(c.Args, "--leave") {
					t.Errorf("%s: drain %v, grace %v, %v", o.Metadata.Name, drain, grace, c.Args)
				}
			}
		})
	}
}

// TestServersFollowTheirTasks: KEDA asks for the open tasks of this run and environment, shared out by what one pod plays at once,
// and no number of replicas fights it.
func TestServersFollowTheirTasks(t *testing.T) {
	list := render(t, "testdata/full.yaml")
	table, err := os.ReadFile("../prometheus/README.md") // made from the code
	if err != nil || !strings.Contains(string(table), "| `prl_emitter_tasks_open` |") {
		t.Errorf("there is no metric prl_emitter_tasks_open: %v", err)
	}
	scaled := of(list, "ScaledObject")
	if len(scaled) != 2 {
		t.Fatalf("%d scaled objects for two environments", len(scaled))
	}
	for _, s := range scaled {
		i := slices.IndexFunc(list, func(o object) bool { return o.Kind == "StatefulSet" && o.Metadata.Name == s.Spec.ScaleTargetRef.Name })
		env := strings.TrimPrefix(s.Metadata.Name, "prl-envserver-")
		set := list[i]
		if set.Spec.Replicas != nil {
			t.Errorf("%s: %d replicas", s.Metadata.Name, *set.Spec.Replicas)
		}
		trigger := s.Spec.Triggers[0].Metadata
		if want := `max(prl_emitter_tasks_open{run="demo",env="` + env + `"})`; trigger["query"] != want {
			t.Errorf("query %s, want %s", trigger["query"], want)
		}
		for _, v := range set.Spec.Template.Spec.Containers[0].Env {
			if v.Name == "PRL__ENVSERVER__CONCURRENCY" && v.Value != trigger["threshold"] {
				t.Errorf("%s: threshold %s, concurrency %s", s.Metadata.Name, trigger["threshold"], v.Value)
			}
		}
	}
	for _, o := range of(render(t), "StatefulSet") {
		if o.Spec.Replicas == nil {
			t.Errorf("%s: no number of replicas, and nobody that scales it", o.Metadata.Name)
		}
	}
}

// TestTrainerKeepsItsRanks: no rank may be evicted; each has a GPU; they meet at the first.
func TestTrainerKeepsItsRanks(t *testing.T) {
	list := render(t, "testdata/gpu.yaml")
	for _, o := range list {
		switch {
		case o.Kind == "PodDisruptionBudget" && o.Metadata.Name == "prl-trainer":
			if o.Spec.MinAvailable == nil || *o.Spec.MinAvailable != 2 {
				t.Errorf("budget %+v", o.Spec)
			}
		case o.Kind == "Job" && o.stage() == "trainer":
			c := o.Spec.Template.Spec.Containers[0]
			if o.Spec.Completions != 2 || c.Resources.Limits["nvidia.com/gpu"] != "1" || !strings.Contains(strings.Join(c.Args, " "), "--rendezvous prl-trainer:29500") {
				t.Errorf("%+v", c)
			}
		}
	}
	other := render(t, "testdata/gpu.yaml", "testdata/minimal.yaml") // another configuration would be another Job
	name := func(list []object) string {
		for _, o := range of(list, "Job") {
			if o.stage() == "trainer" {
				return o.Metadata.Name
			}
		}
		return ""
	}
	if name(list) == name(other) || name(list) != name(render(t, "testdata/gpu.yaml")) {
		t.Errorf("Jobs %s and %s", name(list), name(other))
	}
}

// TestUsersHaveTheRightsOfTheFlow: the KafkaUsers are those of stages.ACLs, right by right, and each process is one of them.
func TestUsersHaveTheRightsOfTheFlow(t *testing.T) {
	list := render(t, "testdata/full.yaml")
	var got []string
	users := map[string]bool{}
	for _, u := range of(list, "KafkaUser") {
		users[u.Metadata.Name] = true
		for _, a := range u.Spec.Authorization.ACLs {
			kind := map[string]string{"topic": "Topic", "group": "Group", "transactionalId": "TransactionalId", "cluster": "Cluster"}[a.Resource.Type]
			pattern := map[string]string{"prefix": "PREFIXED", "literal": "LITERAL", "": "LITERAL"}[a.Resource.PatternType]
			name := a.Resource.Name
			if kind == "Cluster" {
				name = "kafka-cluster"
			}
			got = append(got, "User:"+u.Metadata.Name+","+kind+","+pattern+","+name+","+a.Operations[0]+",Allow,*")
		}
	}
	var want []string
	for row := range strings.Lines(stages.ACLs("demo")) {
		who, _, _ := strings.Cut(strings.TrimPrefix(row, "User:"), ",")
		if users[who] {
			want = append(want, strings.TrimSpace(row))
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) || len(want) < 50 {
		t.Errorf("rights\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, o := range workloads(list) {
		for _, v := range o.Spec.Template.Spec.Containers[0].Env {
			if v.Name == "PRL__KAFKA__USER" && !users[v.Value] {
				t.Errorf("%s is the user %s, which there is not", o.Metadata.Name, v.Value)
			}
		}
		i := slices.IndexFunc(o.Spec.Template.Spec.Volumes, func(v volume) bool { return v.Name == "kafka-user" })
		if i < 0 || !users[o.Spec.Template.Spec.Volumes[i].Secret.SecretName] {
			t.Errorf("%s has no password of its own", o.Metadata.Name)
		}
	}
}
