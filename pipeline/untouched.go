package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// looksForState is how often in a row a stage has to find that its state was deleted before it stops. That takes some
// three seconds, in which a broker that wakes from a pause learns that others lead by now and know more than it does.
const looksForState = 6

// forgottenState finds the newest committed state record of a partition of which the group knows no offset; a partition
// that is new has none. It refuses to start from nothing where the stage has worked before: its state was deleted.
//
// Other instances may begin to work meanwhile, so only one order of looking proves that. Their first state is acknowledged
// before they write anything else (transaction.produce): whoever has seen something of the stage, and looks for its state
// only then, sees some.
func (p *Processor) forgottenState(ctx context.Context, topic string, partition int32) (at int64, found bool, err error) {
	at, found, any, err := p.rt.newestState(ctx, p.cfg.Stage, topic, partition)
	if err != nil {
		return 0, false, err
	}
	if !any {
		proof, err := p.proof(ctx)
		if err != nil || proof == "" {
			return 0, false, err
		}
		if at, found, any, err = p.rt.newestState(ctx, p.cfg.Stage, topic, partition); err != nil {
			return 0, false, err
		}
		if !any {
			return 0, false, p.missing(proof)
		}
	}
	p.missed = 0
	return at, found, nil
}

// missing is the error of a stage that has worked, as the topic of that name shows, and finds no state of itself.
func (p *Processor) missing(proof string) error {
	state := p.rt.TopicName(TopicState)
	if p.missed++; p.missed < looksForState {
		return fmt.Errorf("%s holds records of this stage, but no state of it was found in topic %s", proof, state)
	}
	return Fatal("%s holds records of this stage, but topic %s holds no state of it: it was deleted; start a new run", proof, state)
}

// proof names a topic that shows that this stage has worked; empty where none does.
func (p *Processor) proof(ctx context.Context) (string, error) {
	if len(p.cfg.Proof) == 0 {
		return "", nil
	}
	cl, err := p.rt.Client()
	if err != nil {
		return "", err
	}
	defer cl.Close()
	for _, t := range p.cfg.Proof {
		name, own := p.rt.TopicName(t), false
		ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, name)
		if err == nil {
			err = ends.Error()
		}
		if err != nil {
			return "", fmt.Errorf("look whether %s holds records: %w", name, err)
		}
		ends.Each(func(o kadm.ListedOffset) { own = own || o.Offset > 0 })
		if own {
			if own, err = p.rt.holdsOwn(ctx, t); err != nil {
				return "", err
			}
		}
		if own {
			return name, nil
		}
	}
	return "", nil
}

// holdsOwn reports whether a topic that has been written to holds anything that was not written by hand.
func (rt *Runtime) holdsOwn(ctx context.Context, name string) (bool, error) {
	topic, ok := TopicOf(name)
	if !ok || topic.ByHand == nil {
		return true, nil
	}
	spans, err := rt.Spans(ctx, true, name)
	if err != nil {
		return false, err
	}
	own := false
	err = rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
		if own || r.Attrs.IsControl() {
			return nil
		}
		v, err := rt.DecodeValue(ctx, r.Value)
		if errors.Is(err, ErrTransient) {
			return fmt.Errorf("look who has written to %s: %w", rt.TopicName(name), err)
		}
		own = err != nil || !topic.ByHand(v)
		return nil
	})
	return own, err
}
