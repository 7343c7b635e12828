package inference

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/schemas"
)

// An arrival measures how long a version takes from its record, when this stage has read it, to the first token that it
// samples here. Of versions that come faster than that only the newest is measured. Where a backend does not say when it
// samples, the end of the first completion counts.
type arrival struct {
	seconds *prometheus.HistogramVec // by kind of the version
	awaited atomic.Pointer[awaited]  // nil for none
}

// awaited is a version that has not sampled a token yet.
type awaited struct {
	version int64
	kind    string
	read    time.Time
}

func newArrival() *arrival {
	return &arrival{seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "prl_inference_version_to_token_seconds",
		Help:    "From the record of a policy version to the first token that it sampled, by kind: full, delta or lora.",
		Buckets: prometheus.ExponentialBuckets(0.005, 2, 18), // to 11 minutes
	}, []string{"kind"})}
}

// published says that the record of a version was read.
func (a *arrival) published(v *schemas.PolicyVersion) {
	if w := a.awaited.Load(); w == nil || v.Version > w.version {
		a.awaited.Store(&awaited{v.Version, v.Kind, time.Now()})
	}
}

// sampled says that a version sampled a token. It may be called for every token.
func (a *arrival) sampled(version int64) {
	if w := a.awaited.Load(); w != nil && version >= w.version && a.awaited.CompareAndSwap(w, nil) {
		a.seconds.WithLabelValues(w.kind).Observe(time.Since(w.read).Seconds())
	}
}

// A watchable backend says when a version that is trained has sampled a token: at least the first one. watch is called once,
// before Load; sampled is safe for concurrent use and returns at once.
type watchable interface {
	watch(sampled func(version int64))
}
