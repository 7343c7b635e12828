package try

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// A printer writes for people and keeps the first error.
type printer struct {
	out io.Writer
	err error
	// agent is whose messages were shown last, where there are several.
	agent string
	// place says where an image can be looked at; nil where it cannot.
	place func(env.Image) string
}

func (p *printer) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.out, format, args...)
	}
}

// label is as wide as the longest role and a space.
const label = 11

// messages shows messages, each under its role, and its images in words. Those of another agent than before begin with its name.
func (p *printer) messages(messages []env.Message) {
	for _, m := range messages {
		if m.Agent != p.agent {
			p.agent = m.Agent
			p.printf("(%s)\n", plain(m.Agent))
		}
		for _, i := range m.Images {
			text := i.Alt
			if text == "" {
				text = fmt.Sprintf("%s, %d bytes, without words", i.MIME, len(i.Data))
			}
			if p.place != nil {
				text += " — " + p.place(i)
			}
			p.labelled("image", text)
		}
		if m.Content != "" || len(m.ToolCalls)+len(m.Images) == 0 {
			p.labelled(string(m.Role), m.Content)
		}
		for _, c := range m.ToolCalls {
			p.labelled("call", c.Name+" "+c.Arguments)
		}
	}
}

// labelled shows a text, its further lines below the first. What a terminal would take for an instruction is shown as it is
// written in Go.
func (p *printer) labelled(name, text string) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	for i, l := range lines {
		if i > 0 {
			name = ""
		}
		p.printf("%s\n", strings.TrimRight(fmt.Sprintf("%-*s%s", label, name, plain(l)), " "))
	}
}

// plain replaces what is not to be printed.
func plain(text string) string {
	clean := func(r rune) bool { return r != '\t' && !strconv.IsPrint(r) }
	if !strings.ContainsFunc(text, clean) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if clean(r) {
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// tools shows how each tool is called.
func (p *printer) tools(tools []env.Tool) {
	if len(tools) == 0 {
		return
	}
	p.printf("tools\n")
	for _, t := range tools {
		s := readSchema(t)
		call := "/" + t.Name
		for _, name := range s.order {
			arg := name + "=" + s.Properties[name].shape()
			if !slices.Contains(s.Required, name) {
				arg = "[" + arg + "]"
			}
			call += " " + arg
		}
		p.printf("  %s\n", plain(call))
		if t.Description != "" {
			p.labelled("", t.Description)
		}
		for _, name := range s.order {
			if d := s.Properties[name].Description; d != "" {
				p.labelled("", name+": "+d)
			}
		}
	}
}

// shape is a property's values in few characters: red|green, or integer.
func (p property) shape() string {
	if len(p.Enum) > 0 {
		all := make([]string, len(p.Enum))
		for i, v := range p.Enum {
			all[i] = fmt.Sprint(v)
		}
		return strings.Join(all, "|")
	}
	if kinds := p.kinds(); len(kinds) > 0 {
		return strings.Join(kinds, "|")
	}
	return "any"
}

// schemas shows the tools with the JSON Schema of their arguments, as a model is told.
func (p *printer) schemas(tools []env.Tool) {
	if len(tools) == 0 {
		p.printf("(there are no tools here)\n")
	}
	for _, t := range tools {
		p.printf("%s: %s\n  %s\n", plain(t.Name), plain(t.Description), t.Schema)
	}
}

// score shows what an episode was worth.
func (p *printer) score(s env.Score, turns int) {
	p.printf("\nended      %s, replies: %d\n", plain(s.Stop), turns)
	p.printf("reward     %s\n", optional(s.Rewards.Total()))
	p.components(s.Rewards)
	for _, agent := range slices.Sorted(maps.Keys(s.Agents)) {
		p.printf("of %s  %s\n", plain(agent), optional(s.Agents[agent].Total()))
		p.components(s.Agents[agent])
	}
	if len(s.Metrics) > 0 {
		p.printf("metrics\n")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Metrics)) {
		p.printf("  %-16s %s\n", plain(name), number(s.Metrics[name]))
	}
}

func (p *printer) components(rewards env.Rewards) {
	for _, name := range slices.Sorted(maps.Keys(rewards)) {
		r := rewards[name]
		p.printf("  %-16s %s\n", plain(name), strings.TrimSpace(fmt.Sprintf("%-10s %s", optional(r.Value), weight(r))))
	}
}

// weight is what a component counts, where that is not 1.
func weight(r env.Reward) string {
	switch r.Weight {
	case 1:
		return ""
	case 0:
		return "does not count"
	}
	return "× " + number(r.Weight)
}

// optional is a figure, or that there is none.
func optional(v *float64) string {
	if v == nil {
		return "none (does not apply)"
	}
	return number(*v)
}

// number is a whole figure as it is, another one in four significant digits.
func number(v float64) string {
	if v == math.Trunc(v) && math.Abs(v) < 1e15 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 4, 64)
}
