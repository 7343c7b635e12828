package envserver

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/envserver/env"
)

// What an environment may say at most, beside Config.MaxEnvBytes. One that says more has failed.
const (
	maxMessages = 1 << 10 // at once
	maxTools    = 1 << 8
	maxFigures  = 1 << 8 // components of the reward of each agent, and metrics
	maxName     = 1 << 8 // bytes of the name of a figure, and of why an episode ended
)

// What traces keep of an error, in bytes.
const (
	mostMessage   = 16 << 10
	mostTraceback = 64 << 10
)

// overdue counts the calls of an environment that should have returned and have not. Go can end none of them, so each keeps what
// it holds; when there are Config.MaxStuck, nothing of the environment is begun until one returns.
type overdue struct{ calls atomic.Int64 }

// check is an error where there are too many.
func (o *overdue) check(most int) error {
	if n := o.calls.Load(); n >= int64(most) {
		return fmt.Errorf("%d calls of the environment have not returned, long after they should have; nothing of it is begun until fewer than %d (envserver.max_stuck) hang", n, most)
	}
	return nil
}

// checkMessages holds what an environment says at once to its limits.
func checkMessages(messages []env.Message, most int) error {
	if len(messages) > maxMessages {
		return fmt.Errorf("%d messages at once: at most %d", len(messages), maxMessages)
	}
	size := 0
	for _, m := range messages {
		size += len(m.Role) + len(m.Content) + len(m.ToolCallID)
		for _, c := range m.ToolCalls {
			size += len(c.ID) + len(c.Name) + len(c.Arguments)
		}
		for _, i := range m.Images {
			size += len(i.MIME) + len(i.Data) + len(i.Alt)
		}
	}
	return checkSize("messages", size, most)
}

func checkSize(what string, size, most int) error {
	if size > most {
		return fmt.Errorf("%s of %d bytes at once: at most %d (envserver.max_env_bytes)", what, size, most)
	}
	return nil
}

// check holds what the start of an episode tells to its limits.
func (o opening) check(most int) error {
	if len(o.tools) > maxTools {
		return fmt.Errorf("%d tools: at most %d", len(o.tools), maxTools)
	}
	size := 0
	for _, t := range o.tools {
		size += len(t.Name) + len(t.Description) + len(t.Schema)
	}
	return errors.Join(checkSize("a task", len(o.task), most), checkSize("tools", size, most), checkMessages(o.prompt, most))
}

// checkScore holds the names in a score to their limits; that its figures are finite is checked elsewhere.
func checkScore(s env.Score) error {
	if len(s.Metrics) > maxFigures {
		return fmt.Errorf("%d metrics: at most %d", len(s.Metrics), maxFigures)
	}
	for name := range s.Metrics {
		if err := checkName("metric", name); err != nil {
			return err
		}
	}
	if err := checkRewards(s.Rewards); err != nil {
		return err
	}
	for _, rewards := range s.Agents {
		if err := checkRewards(rewards); err != nil {
			return err
		}
	}
	return checkName("stop reason", s.Stop)
}

func checkRewards(rewards env.Rewards) error {
	if len(rewards) > maxFigures {
		return fmt.Errorf("%d components of the reward: at most %d", len(rewards), maxFigures)
	}
	for name := range rewards {
		if err := checkName("reward", name); err != nil {
			return err
		}
	}
	return nil
}

func checkName(what, name string) error {
	switch {
	case len(name) > maxName:
		return fmt.Errorf("a %s with a name of %d bytes: at most %d", what, len(name), maxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("a %s whose name %q is not UTF-8", what, name)
	}
	return nil
}

// errGone is a call that neither returned nor panicked.
var errGone = errors.New("the environment ended the goroutine that called it (runtime.Goexit)")

// words is an error of an environment in plain words. An error's methods are the environment's code, too, which may panic or
// block, so they are called where its other code is.
type words struct {
	message, traceback string
	full               bool // it is env.ErrFull
}

func (w *words) Error() string { return w.message }

// Is tells what else counts of it.
func (w *words) Is(target error) bool { return w.full && target == env.ErrFull }

// Traceback implements env.Traced.
func (w *words) Traceback() string { return w.traceback }

// inWords asks an error of an environment what it says.
func inWords(err error) (out error) {
	if err == nil {
		return nil
	}
	defer func() {
		if v := recover(); v != nil {
			out = &words{
				message:   fmt.Sprintf("an error of type %T, which panics when it is asked what it says", err),
				traceback: cut(string(debug.Stack()), mostTraceback),
			}
		}
	}()
	w := &words{message: cut(err.Error(), mostMessage), full: errors.Is(err, env.ErrFull)}
	if traced, ok := errors.AsType[env.Traced](err); ok {
		w.traceback = cut(traced.Traceback(), mostTraceback)
	}
	return w
}

// cut is the beginning of a text that is too long.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return valid(text[:most]) + "…"
}
