package pipeline

import (
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// secretive is a broker with users: root may do everything, alice what acls say.
func secretive(t *testing.T, acls ...kfake.ACL) (as func(user string) *Runtime) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableSASL(), kfake.EnableACLs(),
		kfake.Superuser(SASLPlain, "root", "right"), kfake.User(SASLPlain, "alice", "right", acls...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	t.Setenv("PRL_TEST_PASSWORD", "right")
	return func(user string) *Runtime {
		rt := runtimeFor(t, cluster.ListenAddrs(), user)
		rt.Kafka = KafkaConfig{SASL: SASLPlain, User: user, PasswordEnv: "PRL_TEST_PASSWORD", Cleartext: true}
		return rt
	}
}

// TestSetUpWithLeastRights sets a run up as a user who may only read traces: what another user made is enough, what is
// missing it names, and topics that are not its concern it leaves alone.
func TestSetUpWithLeastRights(t *testing.T) {
	as := secretive(t, kfake.ACL{
		Resource: kmsg.ACLResourceTypeTopic, Name: "test.traces", Pattern: kmsg.ACLResourcePatternTypeLiteral,
		Operation: kmsg.ACLOperationRead, Allow: true,
	})
	mine := []Right{ReadTopic("test.traces")}
	err := as("alice").SetUp(t.Context(), nil, mine...)
	if want := "topic test.traces does not exist, and this user may not make it: somebody who may runs `prl-stage --stage setup` once"; !errors.Is(err, ErrFatal) || !strings.Contains(err.Error(), want) {
		t.Errorf("without topics: error %v, want %q", err, want)
	}
	if err := as("root").SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := as("alice").SetUp(t.Context(), nil, mine...); err != nil {
		t.Errorf("with topics: %v", err)
	}
	err = as("alice").SetUp(t.Context(), nil, append(mine, WriteTopic("test.samples"))...)
	if want := "this user needs the right Write on topic test.samples"; !errors.Is(err, ErrFatal) || !strings.Contains(err.Error(), want) {
		t.Errorf("with one right too few: error %v, want %q", err, want)
	}
}
