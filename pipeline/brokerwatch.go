package pipeline

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline/faults"
)

// brokerPatience is how long no broker may answer, while some are asked, until that is a fault.
const brokerPatience = 3 * time.Second

// A brokerWatch sees, over all clients of a process, whether any broker answers. One of several that is away is none of its concern:
// the others do.
type brokerWatch struct {
	rt  *Runtime
	now func() time.Time

	mu      sync.Mutex
	failing time.Time // since the first failure after the last answer; zero where there was none
}

// watchedBy is the stage under which faults of the brokers are told.
const watchedBy = "broker"

var (
	_ kgo.HookBrokerConnect = (*brokerWatch)(nil)
	_ kgo.HookBrokerRead    = (*brokerWatch)(nil)
)

// OnBrokerConnect implements kgo.HookBrokerConnect. That a connection was made is no answer yet.
func (w *brokerWatch) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	w.failed(err)
}

// OnBrokerRead implements kgo.HookBrokerRead.
func (w *brokerWatch) OnBrokerRead(_ kgo.BrokerMetadata, _ int16, _ int, _, _ time.Duration, err error) {
	if err != nil {
		w.failed(err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing.IsZero() {
		return // as nearly always
	}
	w.failing = time.Time{}
	w.rt.Mended(watchedBy, faults.BrokerDown, "")
}

func (w *brokerWatch) failed(err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, net.ErrClosed) || errors.Is(err, kgo.ErrClientClosed) {
		return // a client that ends
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.now()
	if w.failing.IsZero() {
		w.failing = now
	}
	if now.Sub(w.failing) >= brokerPatience {
		w.rt.Fault(watchedBy, faults.BrokerDown, "", err)
	}
}
