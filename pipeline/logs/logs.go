// Package logs makes the loggers of prl: lines as text for people or as JSON for programs, in which the same key says the same
// everywhere (Keys), and files of a bounded size.
//
// What models and environments say is data of a line, never part of its form: control characters, line breaks and terminal
// escapes come out quoted (Plain does the same for what is printed without a logger).
package logs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"unicode"
)

// Formats of lines.
const (
	Text = "text"
	JSON = "json"
)

// Says is the message of a line with what an environment printed.
const Says = "the environment says"

// Options say what a logger writes and where.
type Options struct {
	Format string // Text or JSON
	Level  slog.Level
	// EnvLevels are levels of lines about an environment, by its name.
	EnvLevels map[string]slog.Level
	// File takes the lines, too; nil for none. It has those from FileLevel on, or from Level if that is lower.
	File      io.Writer
	FileLevel slog.Level
	// EnvFile is the file for the lines about an environment; nil for none.
	EnvFile func(env string) io.Writer
}

// New makes a logger that writes to w.
func New(w io.Writer, o Options) *slog.Logger {
	h := &handler{shared: &shared{envLevels: o.EnvLevels, envFile: o.EnvFile, format: o.Format}}
	h.shared.sinks = []sink{{o.Level, newSink(o.Format, w)}}
	if o.File != nil {
		h.shared.sinks = append(h.shared.sinks, sink{min(o.Level, o.FileLevel), newSink(o.Format, o.File)})
	}
	h.shared.least = o.Level
	for _, s := range h.shared.sinks {
		h.shared.least = min(h.shared.least, s.level)
	}
	for _, l := range o.EnvLevels {
		h.shared.least = min(h.shared.least, l)
	}
	return slog.New(h)
}

func newSink(format string, w io.Writer) slog.Handler {
	all := &slog.HandlerOptions{Level: slog.Level(-1 << 20)} // what is written is decided above it
	if format == JSON {
		return slog.NewJSONHandler(w, all)
	}
	return slog.NewTextHandler(w, all)
}

type sink struct {
	level slog.Level
	slog.Handler
}

type shared struct {
	sinks     []sink
	least     slog.Level
	envLevels map[string]slog.Level
	envFile   func(env string) io.Writer
	format    string
}

// A handler has the keys of a line once each: what a call says stands over what its logger says.
type handler struct {
	*shared
	attrs  []slog.Attr
	prefix string // of groups
}

// Enabled implements slog.Handler. A level of an environment is looked at with the line.
func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

// WithAttrs implements slog.Handler.
func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	own := *h
	own.attrs = h.attrs[:len(h.attrs):len(h.attrs)]
	for _, a := range attrs {
		a.Key = h.prefix + a.Key
		own.attrs = put(own.attrs, a)
	}
	return &own
}

// WithGroup implements slog.Handler.
func (h *handler) WithGroup(name string) slog.Handler {
	own := *h
	if name != "" {
		own.prefix += name + "."
	}
	return &own
}

// put sets the value of a key.
func put(attrs []slog.Attr, a slog.Attr) []slog.Attr {
	for i := range attrs {
		if attrs[i].Key == a.Key {
			attrs = append(attrs[:i:i], attrs[i+1:]...)
			break
		}
	}
	return append(attrs, a)
}

// Handle implements slog.Handler.
func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	attrs := h.attrs[:len(h.attrs):len(h.attrs)]
	r.Attrs(func(a slog.Attr) bool {
		a.Key = h.prefix + a.Key
		attrs = put(attrs, a)
		return true
	})
	env := ""
	for _, a := range attrs {
		if a.Key == Env {
			env = a.Value.String()
		}
	}
	line := slog.NewRecord(r.Time, r.Level, r.Message, r.PC)
	line.AddAttrs(attrs...)
	own, special := h.envLevels[env]
	var failed error
	for _, s := range h.sinks {
		level := s.level
		if special {
			level = own
		}
		if r.Level < level {
			continue
		}
		if err := s.Handle(ctx, line.Clone()); err != nil {
			failed = err
		}
	}
	if env == "" || h.envFile == nil || r.Message == Says { // what it says is in its file as it is
		return failed
	}
	if w := h.envFile(env); w != nil && (special && r.Level >= own || !special && r.Level >= slog.LevelInfo) {
		if err := newSink(h.format, w).Handle(ctx, line); err != nil {
			failed = err
		}
	}
	return failed
}

// Plain is a text that somebody else wrote as it may be shown on a terminal: what is no printable character but a line break
// or a tab is written as Go writes it in a string.
func Plain(text string) string {
	var b strings.Builder
	for i, c := range text {
		switch {
		case c == unicode.ReplacementChar && !strings.HasPrefix(text[i:], string(unicode.ReplacementChar)):
			fmt.Fprintf(&b, `\x%02x`, text[i])
		case c == '\n' || c == '\t' || unicode.IsPrint(c):
			b.WriteRune(c)
		case c < unicode.MaxASCII:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			fmt.Fprintf(&b, `\u%04x`, c)
		}
	}
	return b.String()
}
