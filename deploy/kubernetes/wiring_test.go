package kubernetes

import (
	"encoding/json"
	"regexp"
	"slices"
	"testing"
)

// reference is a variable that the kubelet puts into arguments.
var reference = regexp.MustCompile(`\$\((\w+)\)`)

// TestNamesAreThere: whatever a manifest names is there: ports, accounts, configuration, volumes, variables, what is scaled.
func TestNamesAreThere(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			list := render(t, files...)
			has := func(kind, name string) {
				if !slices.ContainsFunc(of(list, kind), func(o object) bool { return o.Metadata.Name == name }) {
					t.Errorf("there is no %s %s", kind, name)
				}
			}
			for _, o := range workloads(list) {
				pod := o.Spec.Template.Spec
				has("ServiceAccount", pod.ServiceAccountName)
				if o.Kind == "StatefulSet" {
					has("Service", o.Spec.ServiceName)
				}
				for _, v := range pod.Volumes {
					if v.ConfigMap != nil {
						has("ConfigMap", v.ConfigMap.Name)
					}
					if c := v.PersistentVolumeClaim; c != nil && c.ClaimName != "shared" && c.ClaimName != "models" {
						has("PersistentVolumeClaim", c.ClaimName)
					}
				}
				for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
					for _, arg := range c.Args {
						for _, m := range reference.FindAllStringSubmatch(arg, -1) {
							if !slices.ContainsFunc(c.Env, func(v variable) bool { return v.Name == m[1] }) {
								t.Errorf("%s: %s names a variable that is not there", o.Metadata.Name, arg)
							}
						}
					}
				}
			}
			for _, o := range of(list, "ScaledObject") {
				has(o.Spec.ScaleTargetRef.Kind, o.Spec.ScaleTargetRef.Name)
			}
		})
	}
}

// TestSelectorsMatchTheirPods: every Service and every budget finds pods, those of its own component alone, and the port it sends to.
func TestSelectorsMatchTheirPods(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			list := render(t, files...)
			for _, o := range slices.Concat(of(list, "Service"), of(list, "PodDisruptionBudget"), of(list, "StatefulSet")) {
				found := selected(t, list, o)
				if len(found) == 0 {
					t.Errorf("%s %s selects no pod", o.Kind, o.Metadata.Name)
				}
				if len(found) > 1 && o.Metadata.Name != "prl-stages" {
					t.Errorf("%s %s selects pods of %d workloads", o.Kind, o.Metadata.Name, len(found))
				}
				if o.Kind != "Service" {
					continue
				}
				for _, p := range o.Spec.Ports {
					for _, w := range found {
						if w.stage() != "setup" && !listens(w, p.TargetPort) {
							t.Errorf("Service %s: %s has no port %v", o.Metadata.Name, w.Metadata.Name, p.TargetPort)
						}
					}
				}
			}
		})
	}
}

func listens(w object, port any) bool {
	for _, c := range w.Spec.Template.Spec.Containers {
		for _, p := range c.Ports {
			if p.Name == port || float64(p.ContainerPort) == port {
				return true
			}
		}
	}
	// The Service of a trainer with one rank names a port that nobody uses.
	return port == float64(29500) && w.stage() == "trainer"
}

// selected are the workloads whose pods a Service's, a budget's or a set's selector matches.
func selected(t *testing.T, list []object, o object) (found []object) {
	t.Helper()
	var s labelSelector
	into := any(&s)
	if o.Kind == "Service" {
		into = &s.MatchLabels
	}
	if err := json.Unmarshal(o.Spec.Selector, into); err != nil || len(s.MatchLabels) == 0 {
		t.Fatalf("%s %s: selector %s: %v", o.Kind, o.Metadata.Name, o.Spec.Selector, err)
	}
	for _, w := range workloads(list) {
		labels := map[string]string{}
		for k, v := range w.Spec.Template.Metadata.Labels {
			labels[k] = v
		}
		if w.Kind == "Job" { // of an indexed Job's pods, the first
			labels["batch.kubernetes.io/job-completion-index"] = "0"
		}
		if s.matches(labels) {
			found = append(found, w)
		}
	}
	return found
}

// TestPodsAreConfined: what every process of prl runs without.
func TestPodsAreConfined(t *testing.T) {
	for name, files := range values {
		t.Run(name, func(t *testing.T) {
			list := render(t, files...)
			for _, o := range workloads(list) {
				pod := o.Spec.Template.Spec
				if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken || !pod.SecurityContext.RunAsNonRoot {
					t.Errorf("%s has a token, or may be root", o.Metadata.Name)
				}
				for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
					if c.SecurityContext.AllowPrivilegeEscalation == nil || *c.SecurityContext.AllowPrivilegeEscalation {
						t.Errorf("%s: %s may gain privileges", o.Metadata.Name, c.Name)
					}
					if c.Name == "stage" && !c.SecurityContext.ReadOnlyRootFilesystem {
						t.Errorf("%s: may write to its image", o.Metadata.Name)
					}
					if c.Name == "stage" && o.stage() != "setup" &&
						(c.LivenessProbe.HTTPGet.Path != "/healthz" || c.ReadinessProbe.HTTPGet.Path != "/readyz" || c.StartupProbe == nil) {
						t.Errorf("%s: probes %+v", o.Metadata.Name, c)
					}
				}
			}
			for _, o := range of(list, "ServiceAccount") {
				if o.AutomountServiceAccountToken == nil || *o.AutomountServiceAccountToken {
					t.Errorf("%s gives out a token", o.Metadata.Name)
				}
			}
			if secrets := of(list, "Secret"); len(secrets) > 0 {
				t.Errorf("%d Secrets are in the chart", len(secrets))
			}
		})
	}
}
