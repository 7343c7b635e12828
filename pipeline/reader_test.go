package pipeline

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestReadOffsets reads records that lie far apart, in one sitting: each is the one that is asked for, whatever the client
// has fetched ahead. A start of a stage with many old open groups depends on it.
func TestReadOffsets(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		const n = 20_000
		var all []*kgo.Record
		for i := range n {
			all = append(all, &kgo.Record{Topic: rt.TopicName(TopicTraces), Value: fmt.Appendf(nil, "%d %s", i, strings.Repeat("x", 100))})
		}
		if err := cl.ProduceSync(t.Context(), all...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(5, 8))
		for range 5 {
			var offsets []int64
			for at := rng.Int64N(500); at < n; at += 1 + rng.Int64N(4*maxGap) {
				offsets = append(offsets, at)
			}
			recs, err := rt.readOffsets(t.Context(), TopicTraces, 0, offsets)
			if err != nil {
				t.Fatal(err)
			}
			var got []int64
			for _, r := range recs {
				if !strings.HasPrefix(string(r.Value), fmt.Sprint(r.Offset, " ")) {
					t.Fatalf("offset %d holds %.20q", r.Offset, r.Value)
				}
				got = append(got, r.Offset)
			}
			if !slices.Equal(got, offsets) {
				t.Fatalf("read %v, want %v", got, offsets)
			}
		}
	})
}
