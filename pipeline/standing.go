package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// lookDeadline bounds a look at brokers that a person waits for.
const lookDeadline = 5 * time.Second

// A Found run is what the brokers tell of a run without its settings.
type Found struct {
	Topics []string  // that can be read, without the run's prefix, sorted
	Envs   []string  // that have tasks
	Run    RunConfig // its name, and the partitions of its topics; all else is not known
}

// ErrNoRun says that brokers have no topics of a run.
var ErrNoRun = errors.New("no such run")

// Find looks up which topics the run has. It needs no right but to read them.
func (rt *Runtime) Find(ctx context.Context) (f Found, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookDeadline)
	defer cancel()
	cl, err := rt.Client()
	if err != nil {
		return f, err
	}
	defer cl.Close()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = nil // all that this user may see
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		if refused := Denied(err); errorsIsFatal(refused) {
			err = refused
		}
		return f, fmt.Errorf("the brokers at %s do not answer: %w", strings.Join(rt.Brokers, ","), err)
	}
	f.Run = RunConfig{Name: rt.Run.Name}
	var others []string
	for _, t := range resp.Topics {
		if t.Topic == nil || kerr.ErrorForCode(t.ErrorCode) != nil {
			continue
		}
		run, name, ok := strings.Cut(*t.Topic, ".")
		if ok && name == TopicPolicies && run != rt.Run.Name {
			others = append(others, run)
		}
		if !ok || run != rt.Run.Name {
			continue
		}
		f.Topics = append(f.Topics, name)
		n := len(t.Partitions)
		switch env, tasks := EnvOfTasks(name); {
		case tasks:
			f.Envs, f.Run.TaskPartitions = append(f.Envs, env), n
		case name == TopicTraces:
			f.Run.TracePartitions = n
		case name == TopicBatches:
			f.Run.Ranks = n
		}
	}
	if !slices.Contains(f.Topics, TopicPolicies) {
		there := "they have none that this user may see"
		if slices.Sort(others); len(others) > 0 {
			there = "they have " + strings.Join(others, ", ")
		}
		return f, fmt.Errorf("the brokers at %s have no run %s, %s: %w; --run names another", strings.Join(rt.Brokers, ","), rt.Run.Name, there, ErrNoRun)
	}
	slices.Sort(f.Topics)
	slices.Sort(f.Envs)
	return f, nil
}

// Since is where the first records stand whose time stamps are not before at, by topic and partition; the end where there are
// none.
func (rt *Runtime) Since(ctx context.Context, at time.Time, topics ...string) (map[string]map[int32]int64, error) {
	starts, err := rt.startsSince(ctx, at, topics)
	if err != nil {
		return nil, err
	}
	positions := map[string]map[int32]int64{}
	for _, topic := range topics {
		positions[topic] = map[int32]int64{}
		for p, o := range starts[rt.TopicName(topic)] {
			positions[topic][p] = o.EpochOffset().Offset
		}
	}
	return positions, nil
}
