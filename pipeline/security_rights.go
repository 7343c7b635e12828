package pipeline

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

// What rights are for, in the words of Kafka's tools.
const (
	ResourceTopic           = "Topic"
	ResourceGroup           = "Group"
	ResourceTransactionalID = "TransactionalId"
	ResourceCluster         = "Cluster"

	OperationRead            = "Read"
	OperationWrite           = "Write"
	OperationCreate          = "Create"
	OperationDelete          = "Delete"   // a topic, and records of it
	OperationDescribe        = "Describe" // Read, Write and Alter imply it
	OperationDescribeConfigs = "DescribeConfigs"
	OperationIdempotentWrite = "IdempotentWrite"
)

// A Right is what brokers with an authorizer let a user do: one ACL.
type Right struct {
	Operation string
	Resource  string
	Name      string // of the resource, with the run's prefix
	Prefix    bool   // every resource whose name begins with Name
}

func (r Right) String() string {
	return fmt.Sprintf("%s on %s %s", r.Operation, names[r.Resource], r.Name)
}

// covers reports whether it is a right to work with a topic.
func (r Right) covers(topic string) bool {
	return r.Resource == ResourceTopic && r.Operation != OperationDescribeConfigs && (r.Name == topic || r.Prefix && strings.HasPrefix(topic, r.Name))
}

var names = map[string]string{
	ResourceTopic: "topic", ResourceGroup: "group", ResourceTransactionalID: "transactional id", ResourceCluster: "cluster",
}

// ReadTopic is the right to consume a topic, by its full name.
func ReadTopic(topic string) Right { return Right{OperationRead, ResourceTopic, topic, false} }

// WriteTopic is the right to produce to a topic.
func WriteTopic(topic string) Right { return Right{OperationWrite, ResourceTopic, topic, false} }

// DescribeTopic is the right to see a topic and where it ends.
func DescribeTopic(topic string) Right { return Right{OperationDescribe, ResourceTopic, topic, false} }

// CreateTopic is the right to make a topic.
func CreateTopic(topic string) Right { return Right{OperationCreate, ResourceTopic, topic, false} }

// DeleteRecords is the right to delete records of a topic.
func DeleteRecords(topic string) Right { return Right{OperationDelete, ResourceTopic, topic, false} }

// ReadGroup is the right to be a member of a consumer group and to commit its offsets.
func ReadGroup(group string) Right { return Right{OperationRead, ResourceGroup, group, false} }

// WriteTransactionalID is the right to run transactions under an id.
func WriteTransactionalID(id string) Right {
	return Right{OperationWrite, ResourceTransactionalID, id, false}
}

// ClusterName is the name of the one resource of type Cluster.
const ClusterName = "kafka-cluster"

// acls is where an operator finds what every stage needs.
const acls = "deploy/kafka/acls.csv lists the rights of every stage"

// Denied makes an error an ErrFatal that says what to do, where the brokers refuse the user something, or the user
// altogether: trying again would not help. needed are the rights of the request that failed; those on what the error
// speaks of are named. Other errors it leaves alone.
func Denied(err error, needed ...Right) error {
	if err == nil || errorsIsFatal(err) {
		return err
	}
	for _, d := range []struct {
		err      *kerr.Error
		resource string
	}{
		{kerr.TopicAuthorizationFailed, ResourceTopic}, {kerr.GroupAuthorizationFailed, ResourceGroup},
		{kerr.TransactionalIDAuthorizationFailed, ResourceTransactionalID}, {kerr.ClusterAuthorizationFailed, ResourceCluster},
	} {
		if !errors.Is(err, d.err) {
			continue
		}
		var missing []string
		for _, r := range needed {
			if r.Resource == d.resource {
				missing = append(missing, r.String())
			}
		}
		if len(missing) > 0 {
			return Fatal("the brokers refuse: this user needs the right %s (%s): %w", strings.Join(missing, " and "), acls, err)
		}
		return Fatal("the brokers refuse: this user lacks a right on a %s (%s): %w", names[d.resource], acls, err)
	}
	return unauthenticated(err)
}

// unauthenticated is the part of Denied that is about who the user and the brokers are.
func unauthenticated(err error) error {
	var certificate *tls.CertificateVerificationError
	var alert *net.OpError
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return Fatal("the brokers refuse the user of section [kafka]: check user, password_file or password_env (token_file or token_env): %w", err)
	case errors.Is(err, kerr.UnsupportedSaslMechanism):
		return Fatal("the brokers do not speak kafka.sasl here: choose another mechanism, or the port that speaks it: %w", err)
	case errors.As(err, &certificate):
		return Fatal("a broker's certificate is not to be trusted: check kafka.ca_file (who signed it) and kafka.server_name (whom it is for): %w", err)
	case errors.As(err, &alert) && alert.Op == "remote error": // crypto/tls: the other side's alert
		return Fatal("a broker refuses the TLS connection: where it asks for a certificate, kafka.cert_file and kafka.key_file name one that it trusts: %w", err)
	}
	return err
}

// offsetsError is the error of listed offsets, if one has any.
func offsetsError(l kadm.ListedOffsets) error {
	for topic, partitions := range l {
		for _, o := range partitions {
			if o.Err != nil {
				return Denied(fmt.Errorf("%s: %w", topic, o.Err), DescribeTopic(topic))
			}
		}
	}
	return nil
}
