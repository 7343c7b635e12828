package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/prl-project/prl/pipeline/bench/fleet"
)

// fleets is what the figures of the other sections mean for many machines, and whether they foretell what this one does.
var fleets = section{name: "fleet", title: "Fleet, computed: 10,000 environment servers and 64 ranks; and this machine", derive: foretell}

func foretell(rows []row) (all []row) {
	add := func(f figure, value, over float64) {
		r := row{Name: f.name, Unit: f.unit, Over: f.over}
		r.judge(f, value, over)
		all = append(all, r)
	}
	in := &figures{rows: rows}
	here := in.here()
	measured := in.value("flow", "kfake, 3,072 tokens: all stages", "rollouts/s")
	lost := in.missing
	if len(lost) == 0 {
		add(figure{name: "this machine, all stages, by the utilisation law", unit: "rollouts/s", over: "measured", goal: goal{ratio: true, least: 0.5, most: 2}}, here.Limits()[0].Rate, measured)
		add(figure{name: "this machine, all stages, simulated", unit: "rollouts/s", over: "measured", goal: goal{ratio: true, least: 0.5, most: 2}}, here.Simulate(nil, 40, 1).Rate, measured)
	}
	for _, s := range shapes {
		in := &figures{rows: rows}
		f := in.large(s.name, s.words, s.tokens, s.batch)
		if len(in.missing) > 0 {
			lost = append(lost, in.missing...)
			continue
		}
		demand := float64(f.Batch) / f.Step
		add(figure{name: s.name + ": what 64 ranks train", unit: "rollouts/s"}, demand, 0)
		for _, gbit := range []float64{10, 25, 100} {
			f.Network = gbit * 1e9 / 8
			first := dataPlane(f)
			add(figure{name: fmt.Sprintf("%s, %g Gbit/s, full first: %s", s.name, gbit, first.Of), unit: "rollouts/s", over: "what is trained", goal: ratioAtLeast(1)}, first.Rate, demand)
		}
		f.Network = 25e9 / 8
		f.Ahead = f.NeededAhead(demand, part)
		add(figure{name: s.name + ": max_async_level that is needed", unit: "steps"}, float64(f.Ahead), 0)
		p := fleet.Processes{}
		for _, stage := range f.Stages {
			if stage.Name == fleet.EnvServer || stage.Name == "trainer" {
				continue // there are as many as there are
			}
			n := f.Needed(stage.Name, demand, part)
			p[stage.Name] = n
			add(figure{name: fmt.Sprintf("%s: %s that are needed", s.name, stage.Name), unit: "processes", goal: atMost(float64(stage.Most))}, float64(n), 0)
		}
		f.Brokers = f.NeededBrokers(demand, part)
		add(figure{name: s.name + ": brokers that are needed", unit: "brokers", goal: atLeast(1)}, float64(f.Brokers), 0)
		if f.Brokers == 0 {
			continue // one partition is too much for one broker
		}
		r := f.Simulate(p, 20, 1)
		add(figure{name: s.name + ": the trainer waits", unit: "% of the time", goal: atMost(1)}, 100*r.Idle, 0)
		for _, q := range []struct {
			what string
			fleet.Spread
		}{{"end of a rollout → scored", r.Scored}, {"end of a step's last rollout → trainer", r.Packed}, {"cut of a step → its tasks at the servers", r.Refilled}} {
			add(figure{name: s.name + ": " + q.what, unit: "p50-ms"}, 1000*q.P50, 0)
			add(figure{name: s.name + ": " + q.what, unit: "p99-ms"}, 1000*q.P99, 0)
		}
	}
	if len(lost) > 0 {
		all = append(all, row{Name: "what is missing", Why: "there is no " + strings.Join(lost, ", no ")})
	}
	return all
}

// dataPlane is the first limit that is not the trainer's, nor that of how many rollouts are open.
func dataPlane(f fleet.Fleet) fleet.Limit {
	for _, l := range f.Limits() {
		if !strings.HasPrefix(l.Of, "trainer") && !strings.HasPrefix(l.Of, "permits") {
			return l
		}
	}
	return fleet.Limit{Of: "nothing"}
}

// figures looks up what was measured, and keeps what was not.
type figures struct {
	rows    []row
	missing []string
}

// value is that of the first of some names that was measured.
func (in *figures) value(section, name, unit string, or ...string) float64 {
	for _, n := range append([]string{name}, or...) {
		for _, r := range in.rows {
			if r.Section == section && r.Name == n && r.Unit == unit && r.Why == "" {
				return r.Value
			}
		}
	}
	in.missing = append(in.missing, fmt.Sprintf("%s: %s (%s)", section, name, unit))
	return 0
}

// stages are those of the flow, with what they take, in seconds, as figures of the section scale have it.
func (in *figures) stages(shape string, withBroker bool) []fleet.Stage {
	all := []fleet.Stage{
		{Name: fleet.Emitter, Most: 1, Reads: []string{fleet.Outcomes}, Writes: []string{fleet.Tasks}},
		{Name: fleet.EnvServer, Reads: []string{fleet.Tasks}, Follows: []string{fleet.Outcomes}, Writes: []string{fleet.Traces}},
		{Name: fleet.Scorer, Most: partitions, Reads: []string{fleet.Traces}, Writes: []string{fleet.Samples}},
		{Name: fleet.Packer, Most: 1, Reads: []string{fleet.Samples}, Writes: []string{fleet.Batches, fleet.Outcomes}},
		{Name: "trainer", Most: ranks, Reads: []string{fleet.Batches}},
		{Name: "sink", Reads: []string{fleet.Tasks, fleet.Traces, fleet.Samples, fleet.Batches, fleet.Outcomes}},
	}
	for i := range all {
		all[i].CPU = in.value("scale", all[i].Name+" of "+shape, cpuUnit) / 1000
		if withBroker {
			all[i].CPU += in.value("scale", all[i].Name+" of "+shape, brokerUnit) / 1000
		}
	}
	return all
}

// here is this machine, as the flow is measured on it: all stages but the sink, and the broker, on its cores; rollouts take no time.
func (in *figures) here() fleet.Fleet {
	all := in.stages("12x256", true)
	f := fleet.Fleet{Stages: all[:len(all)-1], Cores: runtime.NumCPU(), Brokers: 1, Replicas: 1, Broker: 1, Servers: 1, Slots: 1 << 20, Mean: 1e-6, Group: 8, Batch: 256, Step: 1e-6, Ahead: 8}
	for _, t := range topicsSunk {
		f.Topics = append(f.Topics, fleet.Topic{Name: t.name, Partitions: 1}) // what the broker takes is among what the stages take
	}
	return f
}

const (
	part       = 0.7 // of the time, or of the permits, that is used
	brokers    = 12  // with three copies of everything
	servers    = 10_000
	slots      = 16 // rollouts at once in each
	ranks      = 64
	partitions = 64 // of traces
	// trains is the tokens a second of a rank: an H100 and a model of 0.6 B parameters (shared/REFERENCE.md). A larger model asks less.
	trains = 11_900
	// writes is the tokens a second of one rollout.
	writes = 50
)

// large is the fleet. Its machines are as fast as this one.
func (in *figures) large(shape, words string, tokens float64, batch int) fleet.Fleet {
	f := fleet.Fleet{
		Stages: in.stages(shape, false), Brokers: brokers, Replicas: 3, Servers: servers, Slots: slots, Mean: tokens / writes, Sigma: 1,
		Group: 8, Batch: batch, Step: float64(batch) * tokens / trains / ranks, Ahead: 8,
		Broker:   1e6 * in.value("flow", "Kafka, "+words+": raw", "MB/s", "kfake, "+words+": raw"),
		Hop:      in.value("flow", "Kafka, 3,072 tokens: trace → SampleGroup, half load", "p50-ms", "kfake, 3,072 tokens: trace → SampleGroup, half load") / 1000,
		Beats:    in.value("scale", "requests of an idle environment server", "requests/s"),
		Requests: float64(runtime.NumCPU()) * 1e6 / in.value("scale", "a small request, of the broker and of who asks", "cpu-µs/request"),
	}
	for _, t := range topicsSunk {
		topic := fleet.Topic{Name: t.name, Bytes: in.value("scale", t.name+" of "+shape, t.measured+"-B/rollout"), Partitions: t.partitions}
		if t.name == fleet.Samples {
			topic.Blobs = in.value("scale", "blobs of "+shape, "blobs-B/rollout")
		}
		f.Topics = append(f.Topics, topic)
	}
	return f
}
