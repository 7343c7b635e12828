package stages

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/eval"
	"github.com/prl-project/prl/stages/top"
)

// SetupName is the name under which operators make a run's topics, where its stages may not.
const SetupName = "setup"

// Users of commands that read one run and write another. Such a command is one user, with the rights of both names.
const (
	OriginName     = "origin"      // of the run that --from names
	SetupFromName  = "setup-from"  // of the run that --stage setup begins there
	ReplayIntoName = "replay-into" // of the run that --stage replay writes
)

// Rights are the least that a stage of a run needs of the brokers.
func (s Stage) Rights(run string) []pipeline.Right {
	full := func(topic string) string { return run + "." + topic }
	writes, reads := s.Writes, slices.Concat(s.Reads, s.Tables, s.Deletes)
	if s.Kind != Special { // the shell: state of its cores, input that could not be read
		writes = append(slices.Clone(writes), pipeline.TopicState, pipeline.TopicDLQ)
		reads = append(reads, pipeline.TopicState)
	}
	if s.tells() && !slices.Contains(writes, pipeline.TopicMetrics) { // its faults
		writes = append(slices.Clone(writes), pipeline.TopicMetrics)
	}
	var list []pipeline.Right
	add := func(operation string, topics []string) {
		for _, t := range topics {
			r := pipeline.Right{Operation: operation, Resource: pipeline.ResourceTopic, Name: full(t)}
			if t == AllTasks {
				r.Name, r.Prefix = full(strings.TrimSuffix(AllTasks, "<env>")), true
			}
			if !slices.Contains(list, r) {
				list = append(list, r)
			}
		}
	}
	add(pipeline.OperationRead, reads)
	add(pipeline.OperationWrite, writes)
	add(pipeline.OperationDelete, s.Deletes)
	for _, t := range s.Proof { // looks whether it holds anything, or anything of its own
		if topic, _ := pipeline.TopicOf(t); topic.ByHand != nil {
			add(pipeline.OperationRead, []string{t})
		} else if !slices.Contains(writes, t) && !slices.Contains(reads, t) {
			add(pipeline.OperationDescribe, []string{t})
		}
	}
	list = append(list, pipeline.Right{Operation: pipeline.OperationDescribeConfigs, Resource: pipeline.ResourceTopic, Name: full(""), Prefix: true})
	name := full(s.Name)
	switch {
	case s.Kind != Special:
		// The environment server has a group and a transactional id for each environment; all others one of each, the id
		// with the instance behind it.
		several := s.Kind == LongWork
		group := pipeline.ReadGroup(name)
		if several {
			group.Name, group.Prefix = name+".", true
		}
		id := pipeline.WriteTransactionalID(name + ".")
		id.Prefix = true
		list = append(list, group, id)
	case s.Named:
		id := pipeline.WriteTransactionalID(name + ".")
		id.Prefix = true
		list = append(list, id)
	case len(s.Writes) > 0: // the trainer: one at a time, under one id
		list = append(list, pipeline.WriteTransactionalID(name))
	}
	if s.Kind == LongWork { // writes as it finishes, outside transactions; brokers before Kafka 3.0 want this for that
		list = append(list, pipeline.Right{Operation: pipeline.OperationIdempotentWrite, Resource: pipeline.ResourceCluster, Name: pipeline.ClusterName})
	}
	return list
}

// SetupRights are the least that --stage setup needs.
func SetupRights(run string) []pipeline.Right {
	var list []pipeline.Right
	for _, o := range []string{pipeline.OperationCreate, pipeline.OperationDescribe, pipeline.OperationDescribeConfigs} {
		list = append(list, pipeline.Right{Operation: o, Resource: pipeline.ResourceTopic, Name: run + ".", Prefix: true})
	}
	return list
}

// AuditRights are the least that --stage audit needs.
func AuditRights(run string) []pipeline.Right {
	return []pipeline.Right{{Operation: pipeline.OperationRead, Resource: pipeline.ResourceTopic, Name: run + ".", Prefix: true}}
}

// OriginRights are the least that --stage setup needs of the run that --from names.
func OriginRights(run string) []pipeline.Right {
	return topicRights(run, pipeline.OperationRead, pipeline.TopicPolicies, pipeline.TopicState)
}

// SetupFromRights are the least that --stage setup --from needs of the run that it begins.
func SetupFromRights(run string) []pipeline.Right {
	return slices.Concat(SetupRights(run), topicRights(run, pipeline.OperationRead, pipeline.TopicPolicies),
		topicRights(run, pipeline.OperationWrite, pipeline.TopicPolicies, pipeline.TopicState),
		[]pipeline.Right{pipeline.WriteTransactionalID(run + ".trainer")})
}

// ReplayRights are the least that --stage replay needs of the run that it looks at.
func ReplayRights(run string) []pipeline.Right {
	var topics []string
	for _, mode := range []string{ReplayRecompute, ReplayRescore, ReplayRegenerate, ReplayTrain} {
		for _, topic := range []string{pipeline.TopicTraces, pipeline.TopicEvalTraces} {
			for _, read := range (Replay{Mode: mode, Topic: topic}).topics() {
				if !slices.Contains(topics, read) {
					topics = append(topics, read)
				}
			}
		}
	}
	return topicRights(run, pipeline.OperationRead, topics...)
}

// ReplayIntoRights are the least that --stage replay needs of the run that it writes. That one is its own: it scores, packs, trains and
// plays there, and no right reaches into another run.
func ReplayIntoRights(run string) []pipeline.Right {
	group, id := pipeline.ReadGroup(run+"."), pipeline.WriteTransactionalID(run+".")
	group.Prefix, id.Prefix = true, true
	list := []pipeline.Right{group, id, {Operation: pipeline.OperationIdempotentWrite, Resource: pipeline.ResourceCluster, Name: pipeline.ClusterName}}
	for _, o := range []string{pipeline.OperationCreate, pipeline.OperationDescribeConfigs, pipeline.OperationRead, pipeline.OperationWrite} {
		list = append(list, pipeline.Right{Operation: o, Resource: pipeline.ResourceTopic, Name: run + ".", Prefix: true})
	}
	return list
}

func topicRights(run, operation string, topics ...string) (list []pipeline.Right) {
	for _, t := range topics {
		list = append(list, pipeline.Right{Operation: operation, Resource: pipeline.ResourceTopic, Name: run + "." + t})
	}
	return list
}

// EvalByHandRights are the least that an eval by hand needs where the servers of the run play; to serve the policy and the
// environment itself it needs those of these stages, too.
func EvalByHandRights(run string) []pipeline.Right {
	list := []pipeline.Right{{Operation: pipeline.OperationRead, Resource: pipeline.ResourceTopic, Name: run + ".", Prefix: true}}
	list = append(list, pipeline.Right{Operation: pipeline.OperationWrite, Resource: pipeline.ResourceTopic, Name: run + "." + pipeline.TopicTasks(""), Prefix: true})
	list = append(list, topicRights(run, pipeline.OperationWrite, pipeline.TopicEvalTraces, pipeline.TopicOutcomes, pipeline.TopicEvals)...)
	id := pipeline.WriteTransactionalID(run + "." + eval.ByHandName + ".")
	id.Prefix = true
	return append(list, id)
}

// ACLs is the table of everybody's rights, one principal per stage and command, in the CSV that kafka-security-manager reads and that
// deploy/kafka/acls.sh turns into calls of Kafka's own tool.
func ACLs(run string) string {
	var b strings.Builder
	b.WriteString("KafkaPrincipal,ResourceType,PatternType,ResourceName,Operation,PermissionType,Host\n")
	write := func(who string, rights []pipeline.Right) {
		for _, r := range rights {
			pattern := "LITERAL"
			if r.Prefix {
				pattern = "PREFIXED"
			}
			fmt.Fprintf(&b, "User:%s.%s,%s,%s,%s,%s,Allow,*\n", run, who, r.Resource, pattern, r.Name, r.Operation)
		}
	}
	write(SetupName, SetupRights(run))
	write(OriginName, OriginRights(run))
	write(SetupFromName, SetupFromRights(run))
	write(AuditName, AuditRights(run))
	write(ReplayName, ReplayRights(run))
	write(ReplayIntoName, ReplayIntoRights(run))
	write(eval.ByHandName, EvalByHandRights(run))
	write(top.Name, TopRights(run))
	for _, s := range Flow {
		write(s.Name, s.Rights(run))
	}
	return b.String()
}
