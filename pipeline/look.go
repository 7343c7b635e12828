package pipeline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/prl-project/prl/schemas"
)

// A Look asks the brokers what a process of a run would find, and changes nothing: no topic, no group, no offset, no fence.
// Every wait ends with its context.
type Look struct {
	rt  *Runtime
	cl  *kgo.Client
	adm *kadm.Client
}

// Look makes one. It makes no connection.
func (rt *Runtime) Look() (*Look, error) {
	newest := kversion.Stable()
	// A group that does not exist says in this version, and in no later one, what may be done with it.
	newest.SetMaxKeyVersion(int16(kmsg.DescribeGroups), 5)
	// A later version answers an end of nothing with a new epoch.
	newest.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	cl, err := rt.Client(kgo.MaxVersions(newest))
	if err != nil {
		return nil, err
	}
	return &Look{rt, cl, kadm.NewClient(cl)}, nil
}

// Close drops the connections.
func (l *Look) Close() { l.cl.Close() }

// Brokers says how many brokers there are and which version they have. An error says that they do not answer, refuse the user,
// or lack what prl needs.
func (l *Look) Brokers(ctx context.Context) (brokers int, version string, err error) {
	versions, err := l.adm.ApiVersions(ctx)
	if err != nil {
		return 0, "", Denied(err)
	}
	for _, v := range versions.Sorted() {
		if v.Err != nil {
			return 0, "", fmt.Errorf("broker %d: %w", v.NodeID, Denied(v.Err))
		}
		for _, need := range []struct {
			key  kmsg.Key
			what string
		}{{kmsg.InitProducerID, "transactions"}, {kmsg.TxnOffsetCommit, "offsets in transactions"}, {kmsg.JoinGroup, "consumer groups"}, {kmsg.OffsetFetch, "offsets"}} {
			if _, ok := v.KeyMaxVersion(int16(need.key)); !ok {
				return 0, "", fmt.Errorf("broker %d knows no %s: prl needs a Kafka with transactions and consumer groups", v.NodeID, need.what)
			}
		}
		version = v.VersionGuess()
	}
	return len(versions), version, nil
}

// A TopicSeen is what a look finds of a topic.
type TopicSeen struct {
	Name string // with the run's prefix
	// There says that it exists. Err is what is wrong with it, or why it cannot be made where it does not; nil for all is well.
	There bool
	Err   error
	// Hidden says that it exists perhaps: this user may not see it, and the process needs no right on it.
	Hidden     bool
	Partitions int32
}

// Topics looks at the topics of a run as SetUp does, and makes none.
func (l *Look) Topics(ctx context.Context, envs []string, needed ...Right) ([]TopicSeen, error) {
	s := setup{rt: l.rt, cl: l.cl, adm: l.adm}
	s.planAll(envs, needed)
	have, err := s.look(ctx)
	if err != nil {
		return nil, Denied(err)
	}
	var list []TopicSeen
	for _, t := range s.topics {
		seen := TopicSeen{Name: t.name, Partitions: t.partitions}
		switch got := have[t.name]; {
		case errors.Is(got.err, kerr.UnknownTopicOrPartition):
			seen.Err = l.makeable(ctx, t)
		case got.err != nil && len(t.needed) == 0:
			seen.Hidden = true
		default:
			seen.There = got.err == nil
			if seen.Err = (&setup{rt: l.rt, topics: []*planned{t}}).complete(have); seen.Err == nil {
				seen.Err = (&setup{rt: l.rt, cl: l.cl, topics: []*planned{t}}).check(ctx)
			}
		}
		list = append(list, seen)
	}
	return list, nil
}

// makeable asks whether a topic could be made.
func (l *Look) makeable(ctx context.Context, t *planned) error {
	configs := map[string]*string{}
	for k, v := range t.configs {
		configs[k] = &v
	}
	resp, err := l.adm.ValidateCreateTopics(ctx, t.partitions, -1, configs, t.name)
	if err == nil {
		err = resp[t.name].Err
	}
	if err = Denied(err, CreateTopic(t.name)); errorsIsFatal(err) {
		return fmt.Errorf("topic %s does not exist, and this user may not make it: somebody who may runs `prl-stage --stage setup` once: %w", t.name, err)
	}
	return err
}

// A RightSeen is what a look finds of a right.
type RightSeen struct {
	Right
	// Err says that the user lacks it. Unknown says why the brokers cannot tell.
	Err     error
	Unknown string
}

// operations are Kafka's numbers of what rights are for.
var operations = map[string]kmsg.ACLOperation{
	OperationRead: kmsg.ACLOperationRead, OperationWrite: kmsg.ACLOperationWrite, OperationCreate: kmsg.ACLOperationCreate,
	OperationDelete: kmsg.ACLOperationDelete, OperationDescribe: kmsg.ACLOperationDescribe, OperationDescribeConfigs: kmsg.ACLOperationDescribeConfigs,
	OperationIdempotentWrite: kmsg.ACLOperationIdempotentWrite,
}

// Rights asks which of the rights this user has, on each thing that one with a prefix is about: topics by what Topics found,
// groups and transactional ids by the ends given.
func (l *Look) Rights(ctx context.Context, rights []Right, topics []TopicSeen, groups, ids []string) ([]RightSeen, error) {
	allowed, err := l.allowed(ctx, topics)
	if err != nil {
		return nil, err
	}
	var list []RightSeen
	for _, r := range rights {
		ends := map[string][]string{ResourceGroup: groups, ResourceTransactionalID: ids}[r.Resource]
		var names []string
		for _, t := range topics {
			if r.Resource == ResourceTopic && (t.Name == r.Name || r.Prefix && !t.Hidden && strings.HasPrefix(t.Name, r.Name)) {
				names = append(names, t.Name)
			}
		}
		switch {
		case r.Resource == ResourceTopic:
		case r.Prefix:
			for _, end := range ends {
				names = append(names, r.Name+end)
			}
		default:
			names = []string{r.Name}
		}
		for _, name := range names {
			one := Right{r.Operation, r.Resource, name, false}
			seen := RightSeen{Right: one}
			switch r.Resource {
			case ResourceTopic:
				seen.judge(allowed[name])
			case ResourceGroup:
				l.group(ctx, &seen)
			case ResourceTransactionalID:
				l.transactionalID(ctx, &seen)
			default:
				seen.Unknown = "only brokers before Kafka 3.0 ask for it"
			}
			if !slices.ContainsFunc(list, func(s RightSeen) bool { return s.Right == one }) {
				list = append(list, seen)
			}
		}
	}
	return list, nil
}

// said is what the brokers say may be done with something.
type said struct {
	operations int32
	err        error
}

// judge takes what the brokers said.
func (s *RightSeen) judge(got said) {
	switch {
	case errors.Is(got.err, kerr.UnknownTopicOrPartition):
		s.Unknown = "it does not exist yet"
	case got.err != nil:
		s.Err = Denied(got.err, s.Right)
	case got.operations == math.MinInt32 || got.operations == 0:
		s.Unknown = "the brokers do not say"
	case got.operations&(1<<operations[s.Operation]) == 0:
		s.Err = Fatal("this user lacks the right %s (%s)", s.Right, acls)
	}
}

// allowed asks what may be done with topics.
func (l *Look) allowed(ctx context.Context, topics []TopicSeen) (map[string]said, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.IncludeTopicAuthorizedOperations = true
	for _, t := range topics {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = kmsg.StringPtr(t.Name)
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return nil, Denied(err)
	}
	all := map[string]said{}
	for _, t := range resp.Topics {
		if t.Topic != nil {
			all[*t.Topic] = said{t.AuthorizedOperations, kerr.ErrorForCode(t.ErrorCode)}
		}
	}
	return all, nil
}

func (l *Look) group(ctx context.Context, s *RightSeen) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups, req.IncludeAuthorizedOperations = []string{s.Name}, true
	resp, err := req.RequestWith(ctx, l.cl)
	switch {
	case err != nil:
		s.Err = Denied(err, s.Right)
	case len(resp.Groups) != 1:
		s.Unknown = "the brokers do not say"
	default:
		s.judge(said{resp.Groups[0].AuthorizedOperations, kerr.ErrorForCode(resp.Groups[0].ErrorCode)})
	}
}

// nobody is a producer id that no broker gives.
const nobody = math.MaxInt64

// transactionalID asks for the end of a transaction that cannot be. Brokers look at the rights first, and then refuse it, since
// the id is not that producer's: nobody who works under it is fenced, as by InitProducerID.
func (l *Look) transactionalID(ctx context.Context, s *RightSeen) {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.Commit = s.Name, nobody, true
	resp, err := req.RequestWith(ctx, l.cl)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	switch {
	case err == nil || errors.Is(err, kerr.InvalidProducerIDMapping) || errors.Is(err, kerr.ProducerFenced) || errors.Is(err, kerr.InvalidProducerEpoch):
	default:
		s.Err = Denied(err, s.Right)
	}
}

// Member asks whether a group has a member of an instance's name: the machine it is on, empty where there is none.
func (l *Look) Member(ctx context.Context, group, instance string) (host string, err error) {
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{group}
	resp, err := req.RequestWith(ctx, l.cl)
	if err != nil {
		return "", Denied(err, ReadGroup(group))
	}
	for _, g := range resp.Groups {
		if err := kerr.ErrorForCode(g.ErrorCode); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
			return "", Denied(err, ReadGroup(group))
		}
		for _, m := range g.Members {
			if m.InstanceID != nil && *m.InstanceID == instance {
				return strings.TrimPrefix(m.ClientHost, "/"), nil
			}
		}
	}
	return "", nil
}

// Open asks whether a transaction is open under an id: somebody works under it, or has died a moment ago.
func (l *Look) Open(ctx context.Context, id string) (bool, error) {
	described, err := l.adm.DescribeTransactions(ctx, id)
	if err != nil {
		return false, Denied(err, WriteTransactionalID(id))
	}
	d := described[id]
	if errors.Is(d.Err, kerr.TransactionalIDNotFound) {
		return false, nil
	}
	return d.State == "Ongoing" || strings.HasPrefix(d.State, "Prepare"), Denied(d.Err, WriteTransactionalID(id))
}

// Missing are the subjects of a registry that do not hold the schema this version of prl writes: Resolve would register them.
// It registers nothing.
func (g *SchemaRegistry) Missing(ctx context.Context) (subjects []string, err error) {
	reading := g.reading()
	for _, t := range Topics {
		if t.Record == "" {
			continue
		}
		r := schemas.New(t.Record)
		if _, err := reading.resolve(ctx, r); errors.Is(err, errNotRegistered) {
			if subject := schemas.FullName(r); !slices.Contains(subjects, subject) {
				subjects = append(subjects, subject)
			}
		} else if err != nil {
			return nil, fmt.Errorf("schema registry at %s: %w", strings.Join(g.cfg.URLs, ", "), err)
		}
	}
	return subjects, nil
}

// reading is the registry as one that may register nothing.
func (g *SchemaRegistry) reading() *SchemaRegistry {
	cfg := g.cfg
	cfg.AutoRegister = false
	return &SchemaRegistry{cfg: cfg, client: g.client, log: g.log, ids: map[string]int{}, versions: map[int]schemas.Version{}}
}
