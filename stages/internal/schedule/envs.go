package schedule

import (
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Env is what the tables say of one configured environment.
type Env struct {
	Name   string
	Info   *schemas.EnvInfo // nil until a server has announced it
	Queues *Queues          // its tasks
	Heard  bool             // one of its servers has spoken; whoever counts silence takes it back
}

// Envs follows the tables envs and state for the configured environments, in the order of their names.
type Envs []*Env

// NewEnvs follows the named environments, each of which has as many partitions of tasks.
func NewEnvs(names []string, partitions int) Envs {
	names = slices.Sorted(slices.Values(names))
	envs := make(Envs, len(names))
	for i, name := range names {
		envs[i] = &Env{Name: name, Queues: NewQueues(partitions)}
	}
	return envs
}

// Index finds an environment by its name; -1 if it is not configured.
func (e Envs) Index(name string) int {
	i, ok := slices.BinarySearchFunc(e, name, func(env *Env, name string) int { return strings.Compare(env.Name, name) })
	if !ok {
		return -1
	}
	return i
}

// Table takes an EnvInfo, or a StageState of an environment server; it ignores all others.
func (e Envs) Table(r pipeline.Record) {
	switch v := r.Value.(type) {
	case *schemas.EnvInfo:
		if i := e.Index(v.Env); i >= 0 {
			e[i].Info, e[i].Heard = v, true
		}
	case *schemas.StageState:
		name, tasks := pipeline.EnvOfTasks(v.Topic)
		if i := e.Index(name); tasks && i >= 0 && v.Stage == "envserver" {
			e[i].Queues.Report(v)
			e[i].Heard = true
		}
	}
}

// Announced reports whether every environment's EnvInfo has been read.
func (e Envs) Announced() bool { return len(e.Missing()) == 0 }

// Missing names the environments that no server has announced yet.
func (e Envs) Missing() []string {
	var names []string
	for _, env := range e {
		if env.Info == nil {
			names = append(names, env.Name)
		}
	}
	return names
}

// Produced tells the queues where tasks went.
func (e Envs) Produced(refs []pipeline.Ref) {
	for _, ref := range refs {
		if name, tasks := pipeline.EnvOfTasks(ref.Topic); tasks {
			if i := e.Index(name); i >= 0 {
				e[i].Queues.Produced(ref)
			}
		}
	}
}
