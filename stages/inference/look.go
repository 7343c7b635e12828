package inference

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"
)

// lookTimeout bounds one look at a server.
const lookTimeout = 30 * time.Second

// look asks the server of a policy what it has and notes which weights they are. An *Error that is not Retryable will not
// pass.
func (d *Directory) look(ctx context.Context, policy string) error {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	host, name := d.at(policy)
	cards, err := host.Models(ctx)
	if err != nil {
		return fmt.Errorf("frozen.%s: list the models of %s: %w", policy, host, err)
	}
	i := slices.IndexFunc(cards, func(c ModelCard) bool { return c.ID == name })
	if i < 0 {
		return d.absent(policy, cards)
	}
	card := cards[i]
	d.mu.Lock()
	own := d.renderer
	d.mu.Unlock()
	switch card.Renderer {
	case own:
	case "":
		d.log.Warn("a frozen policy's tokenizer cannot be compared with the run's: its server does not say which it is", "policy", policy, "server", host.String())
	default:
		return unfit("frozen.%s at %s: %v", policy, host, errTokenizer)
	}
	for _, u := range d.uses {
		if u.Policy != policy {
			continue
		}
		if err := u.check(card, host); err != nil {
			return err
		}
	}
	recorded := policy
	if sum, err := hex.DecodeString(card.Weights); err == nil && len(sum) == sha256.Size {
		recorded += "@" + hex.EncodeToString(sum[:4])
	}
	d.log.Info("a frozen policy can be asked", "policy", policy, "server", host.String(), "recorded_as", recorded)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.recorded[policy] = recorded
	return nil
}

// unfit is the error of a server that cannot be used for a policy.
func unfit(format string, args ...any) error {
	return &Error{Code: CodeUnusable, Message: fmt.Sprintf(format, args...)}
}

// absent is the error of a server that does not have a policy.
func (d *Directory) absent(policy string, cards []ModelCard) error {
	var ids []string
	for _, c := range cards {
		ids = append(ids, c.ID)
	}
	host, name := d.at(policy)
	if d.away[policy] != nil {
		return unfit("frozen.%s.model = %q: %s serves %s", policy, name, host, strings.Join(ids, ", "))
	}
	return unfit("frozen.%s.folder: %s serves %s: give its configuration the section, too", policy, host, strings.Join(ids, ", "))
}

// check holds what a server has to a use of it.
func (u Use) check(card ModelCard, host Host) error {
	foreign := card.Renderer == ""
	most := card.MaxModelLen // a server of ours cuts what it plays there itself
	if u.Teaches {
		most = card.probeLen()
	}
	switch {
	case (u.Teaches || foreign) && most > 0 && u.Tokens > most:
		return unfit("%s = %q: rollouts have up to %d tokens (max_rollout_tokens), %s takes at most %d", u.Key, u.Policy, u.Tokens, host, most)
	case u.Teaches && foreign && u.Temperature != 1:
		return unfit("%s = %q: %s gives log-probabilities at temperature 1 only, rollouts are sampled at %g: sample at temperature 1", u.Key, u.Policy, host, u.Temperature)
	}
	return nil
}
