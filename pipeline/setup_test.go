package pipeline

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// TestTopicsNotYetKnown has a broker, asked for the configuration of topics that another has just made, that knows none of them yet.
func TestTopicsNotYetKnown(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	fired := make(chan struct{}, 1)
	cluster.ControlKey(int16(kmsg.DescribeConfigs), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		for _, r := range req.(*kmsg.DescribeConfigsRequest).Resources {
			got := kmsg.NewDescribeConfigsResponseResource()
			got.ResourceType, got.ResourceName, got.ErrorCode = r.ResourceType, r.ResourceName, kerr.UnknownTopicOrPartition.Code
			resp.Resources = append(resp.Resources, got)
		}
		fired <- struct{}{}
		return resp, nil, true // once
	})
	if err := runtimeFor(t, cluster.ListenAddrs(), "one").SetUp(t.Context(), nil); err != nil || len(fired) != 1 {
		t.Errorf("error %v, refused %d times", err, len(fired))
	}
}
