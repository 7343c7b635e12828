package trainer

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"

	"github.com/prl-project/prl/pipeline"
)

// Of several processes that train together, one per device, rank 0 publishes. It reads every partition of batches: so it
// checks the whole step, knows the offsets behind it, and refuses what no packer wrote. The others read what they train and
// write nothing. All do the same steps in the same order, and whatever ends one of them ends the step of all: they start
// over, each from what it reads in policies, and train only when they agree on that (agree).

// A sharedLearner is a Learner of which every rank has a part.
type sharedLearner interface {
	// Agree gives what rank 0 says of a name. Every rank asks, and of a name once.
	Agree(ctx context.Context, name, value string) (string, error)
}

// alone reports whether there are no other ranks.
func (t *Trainer) alone() bool { return t.cfg.Torch.WorldSize <= 1 }

// leads reports whether this process publishes.
func (t *Trainer) leads() bool { return t.cfg.Torch.Rank == 0 }

// reads reports whether this process reads partition r of batches.
func (t *Trainer) reads(r int) bool { return t.leads() || r%t.cfg.Torch.WorldSize == t.cfg.Torch.Rank }

// A plan is what ranks must agree on before they train together.
type plan struct {
	// Newest is the version published last and its weights, From the one they begin at; -1 where none is published. A rank 0
	// that was superseded while it slept has an older one than the others read.
	Newest  int64
	Weights string
	From    int64
	// Settings are the sections [trainer], without the rank's own, and [model].
	Settings string
}

func (t *Trainer) planOf(published history, from int64) (plan, error) {
	cfg := t.cfg
	cfg.Torch.Rank, cfg.Torch.Rendezvous, cfg.Torch.Python, cfg.Torch.Timeout, cfg.Torch.PeakTFLOPS = 0, "", "", 0, 0
	settings, err := json.Marshal([]any{cfg, t.model})
	if err != nil {
		return plan{}, fmt.Errorf("write down the settings: %w", err)
	}
	p := plan{Newest: -1, From: from, Settings: string(settings)}
	if len(published) > 0 {
		p.Newest, p.Weights = published.newest().Version, published.newest().Weights.SHA256
	}
	return p, nil
}

// agree holds what this rank is about to do against what rank 0 is.
func (t *Trainer) agree(ctx context.Context, published history, from int64) error {
	if t.alone() {
		return nil
	}
	if err := t.follow(ctx); err != nil { // before it is asked, or it could be a later rank 0
		return err
	}
	own, err := t.planOf(published, from)
	if err != nil {
		return err
	}
	text, err := json.Marshal(own)
	if err != nil {
		return fmt.Errorf("write down the plan: %w", err)
	}
	said, err := t.tell(ctx, "plan", string(text))
	if err != nil {
		return err
	}
	var theirs plan
	if err := json.Unmarshal([]byte(said), &theirs); err != nil {
		return pipeline.Fatal("rank 0 has said %q, which is no plan: run one program on all ranks", said)
	}
	switch {
	case theirs.Settings != own.Settings:
		return pipeline.Fatal("rank 0 has other sections [trainer] or [model]: %s; here it is %s", theirs.Settings, own.Settings)
	case theirs != own:
		return fmt.Errorf("%w: rank 0 begins at version %d of %d (%.12s), here it is %d of %d (%.12s): one of the two is behind",
			pipeline.ErrTransient, theirs.From, theirs.Newest, theirs.Weights, own.From, own.Newest, own.Weights)
	}
	return nil
}

// follow connects another rank with the worker of rank 0. A rank that waits for a batch hears nothing of the others: were it
// not to notice that rank 0 starts over, that would wait for it, and the batch for what rank 0 publishes.
func (t *Trainer) follow(ctx context.Context) (err error) {
	if t.leads() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	if t.lead, err = new(net.Dialer).DialContext(ctx, "tcp", t.cfg.Torch.Rendezvous); err != nil {
		return fmt.Errorf("%w: rank 0 does not listen any more: %w", pipeline.ErrTransient, err)
	}
	return nil
}

// watch calls fail when rank 0 is gone, or the learner is given up.
func (t *Trainer) watch(fail context.CancelCauseFunc) {
	lead := t.lead
	if lead == nil {
		return
	}
	go func() {
		_, _ = io.Copy(io.Discard, lead) // nothing comes until it ends, however it does
		fail(fmt.Errorf("%w: rank 0 is gone", pipeline.ErrTransient))
	}()
}

// ended tells the others that the final version is published, or waits until it is.
func (t *Trainer) ended(ctx context.Context) error {
	if t.alone() {
		return nil
	}
	_, err := t.tell(ctx, "end", "published")
	if err == nil || t.leads() {
		return err
	}
	// Rank 0 goes when it has said so, and its word may be lost with it.
	if published, failed := t.home.versions(ctx); failed == nil && len(published) > 0 && published.newest().Final {
		return nil
	}
	return err
}

func (t *Trainer) tell(ctx context.Context, name, value string) (string, error) {
	l, ok := t.learner.(sharedLearner)
	if !ok {
		return "", pipeline.Fatal("the learner cannot be shared by %d ranks", t.cfg.Torch.WorldSize)
	}
	said, err := l.Agree(ctx, name, value)
	if err != nil {
		return "", fmt.Errorf("agree with the other ranks: %w", err)
	}
	return said, nil
}
