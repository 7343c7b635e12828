package trainer

import (
	"bytes"
	"context"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/safetensors"
	"github.com/prl-project/prl/stages/internal/weights"
)

// counting is a learner that is not exact and of whose weights a small tensor changes with every copy of them: it holds how
// many copies there were.
type counting struct {
	Learner
	copies *int32
}

func (counting) Exact() bool { return false }

func (counting) Load(context.Context, string, string) error { return nil }

func (c counting) Snapshot(ctx context.Context, checkpoint bool) (Snapshot, error) {
	s, err := c.Learner.Snapshot(ctx, checkpoint)
	*c.copies++
	return counted{s, *c.copies}, err
}

type counted struct {
	Snapshot
	n int32
}

func (c counted) Weights(_ context.Context, path string) error {
	h, err := safetensors.MakeHeader(nil, []safetensors.Tensor{{Name: "large", DType: "F32", Shape: []int{1000}}, {Name: "small", DType: "I32", Shape: []int{1}}})
	if err != nil {
		return err
	}
	data := append(h.Raw, make([]byte, 4000)...)
	return os.WriteFile(path, binary.LittleEndian.AppendUint32(data, uint32(c.n)), 0o600)
}

// TestDeltasCanBeRead publishes deltas, a whole version every fourth and with every checkpoint, while a commit fails: the
// step is trained again to other weights. Of every version all that it is made from is published and gives its weights.
func TestDeltasCanBeRead(t *testing.T) {
	cluster := testCluster(t)
	rt := testRuntime(t, cluster, testRun("deltas"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	cfg, model := testConfig()
	cfg.Learner, cfg.FullInterval, cfg.CheckpointInterval = LearnerNull, 4, rt.Run.MaxSteps
	tr, err := New(rt, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	inner, copies, fired := tr.newLearner, new(int32), false
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		return counting{l, copies}, err
	}
	hook(tr, false, func(step int64, _ Learner) {
		if step != 2 || fired {
			return
		}
		fired = true
		cluster.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.EndTxnResponse)
			resp.ErrorCode = kerr.UnknownServerError.Code
			return resp, nil, true
		})
	})
	runToEnd(t, tr)
	if !fired {
		t.Fatal("no commit failed")
	}
	all, err := versions(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	deltas := 0
	for _, v := range all {
		if v.Kind == schemas.KindDelta {
			deltas++
		}
		if whole := v.Version%4 == 0 || v.Checkpoint != nil; whole && v.Kind != schemas.KindFull {
			t.Errorf("version %d is a %s", v.Version, v.Kind)
		}
		chain, err := weights.NewHistory(all...).Chain(v)
		if err != nil {
			t.Error(err)
			continue
		}
		got, _, err := chain.Read(t.Context(), rt.Blobs, weights.Held{})
		if _, bad := safetensors.ReadHeader(bytes.NewReader(got.Bytes), int64(len(got.Bytes))); err != nil || bad != nil {
			t.Errorf("version %d: error %v, %v", v.Version, err, bad)
		}
	}
	if deltas == 0 {
		t.Errorf("none of %d versions is a delta", len(all))
	}
}

// TestTrainingGoesOnFromWholeWeightsOnly: a run that begins with a version that is not whole is refused, and has not begun.
func TestTrainingGoesOnFromWholeWeightsOnly(t *testing.T) {
	cluster := testCluster(t)
	a, b := testRuntime(t, cluster, testRun("a")), testRuntime(t, cluster, testRun("b"))
	packSteps(t, a, 1, a.Run.MaxSteps)
	runToEnd(t, testTrainer(t, a))
	origin, err := Origin(t.Context(), a, 3)
	if err != nil {
		t.Fatal(err)
	}
	origin.Kind = schemas.KindLoRA
	if err := Begin(t.Context(), b, "a", a.Blobs, origin, nil); err == nil || !strings.Contains(err.Error(), "version 3 of run a") || !strings.Contains(err.Error(), "its weights are a lora") {
		t.Errorf("error %v", err)
	}
	if made, err := versions(t.Context(), b); err != nil || len(made) > 0 {
		t.Errorf("the run has %d versions, error %v", len(made), err)
	}
}
