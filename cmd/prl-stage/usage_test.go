package main

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/settings"
)

// understood reads a command line as main does.
func understood(args ...string) (f flags, out string, err error) {
	var b bytes.Buffer
	_, err = understand(newParser(&f), &f, args, &b)
	return f, b.String(), err
}

// TestEveryFlagHasItsStages wants of each flag that it says what it is for, in names of stages, and of each stage that its help
// shows its own flags, reads, writes and settings, and examples that are understood.
func TestEveryFlagHasItsStages(t *testing.T) {
	var f flags
	flags := newParser(&f).Model.Flags
	names := map[string]bool{"*": true, "flow": true}
	for _, c := range commands() {
		if names[c.name] {
			t.Errorf("two commands %s", c.name)
		}
		names[c.name] = true
	}
	for _, s := range stages.Flow {
		if !names[s.Name] {
			t.Errorf("no command %s", s.Name)
		}
	}
	for _, flag := range flags {
		words := strings.Fields(flag.Tag.Get("for"))
		if len(words) == 0 {
			t.Errorf("--%s has no tag for:\"…\" with the stages it is for (* for all, flow for those of the flow)", flag.Name)
		}
		for _, w := range words {
			if !names[w] {
				t.Errorf("--%s is for %s, which is no stage", flag.Name, w)
			}
		}
	}
	for _, c := range commands() {
		t.Run(c.name, func(t *testing.T) {
			_, text, err := understood("--help", "--stage", c.name)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(text, "prl-stage --stage "+c.name+": ") {
				t.Errorf("help begins with %.60q", text)
			}
			for _, want := range []string{c.reads, c.writes} {
				if !strings.Contains(text, want) {
					t.Errorf("help does not say %q", want)
				}
			}
			for _, flag := range flags {
				if shown := strings.Contains(text, "  --"+flag.Name+"=") || strings.Contains(text, "--"+flag.Name+" "); !flag.Hidden && shown != usedBy(flag, c.name) && !strings.Contains(text, flag.Name+"=") {
					t.Errorf("--%s is shown: %t", flag.Name, shown)
				}
			}
			for _, name := range c.sections {
				for _, section := range settings.Below(name) {
					if section.Of == "" && !strings.Contains(text, section.Settings[0].Key+" = ") {
						t.Errorf("help does not show %s", section.Settings[0].Key)
					}
				}
				if len(settings.Below(name)) == 0 {
					t.Errorf("there is no section %s", name)
				}
			}
			if len(c.examples) == 0 {
				t.Error("no example")
			}
			for _, e := range c.examples {
				if _, _, err := understood(inRepository(t, append([]string{"--stage", c.name}, strings.Fields(e)...))...); err != nil {
					t.Errorf("the example %s: %v", e, err)
				}
			}
		})
	}
}

// TestUselessFlags gives flags to stages that have no use for them.
func TestUselessFlags(t *testing.T) {
	for line, want := range map[string]string{
		"--stage scorer --learner torch":           "--learner has no use with --stage scorer: it is for trainer, all",
		"--stage trainer --env catch":              "--env has no use with --stage trainer: it is for envserver, eval, replay",
		"--stage sink --fresh":                     "--fresh has no use with --stage sink: it is for all",
		"--stage packer --play":                    "--play has no use with --stage packer",
		"--stage audit --leave":                    "--leave has no use with --stage audit",
		"--stage scorre":                           `there is no stage "scorre": did you mean scorer?`,
		"--set run.seed=1":                         "--stage NAME is missing",
		"--stage scorer more":                      "is no flag, and nothing else is expected here",
		"--stage scorer --leaner torch":            "unknown flag --leaner",
		"--explain run.max_async_levl":             "there is no key run.max_async_levl: did you mean run.max_async_level?",
		"--explain run.seed run.name":              "nothing else is expected here",
		"--config-keys trainr":                     "there is no key trainr",
		"--completion tcsh":                        "bash, zsh or fish",
		"--stage trainer --learner torch":          "",
		"--stage all --learner torch --fresh":      "",
		"--stage envserver --env catch --play":     "",
		"--stage scorer --dry-run --json":          "",
		"--config-keys":                            "",
		"--config-keys trainer.torch":              "",
		"--explain envs.catch.ratio":               "",
		"--explain envs.wordle.options.shown":      "",
		"--stage eval --env catch --temperature 1": "",
	} {
		_, _, err := understood(strings.Fields(line)...)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// TestHelpIsAPage holds --help to what one reads at once.
func TestHelpIsAPage(t *testing.T) {
	_, text, err := understood("--help")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	if len(lines) > 70 {
		t.Errorf("--help has %d lines: a page has 70", len(lines))
	}
	for _, l := range lines {
		if len([]rune(l)) > 140 {
			t.Errorf("too long: %s", l)
		}
	}
	for _, c := range commands() {
		if !strings.Contains(text, "\n  "+c.name+" ") {
			t.Errorf("--help does not list %s", c.name)
		}
	}
}

// TestExplain prints what the binary knows of keys.
func TestExplain(t *testing.T) {
	var b bytes.Buffer
	if err := settings.Explain(&b, "envs.catch.timeout"); err != nil || !strings.Contains(b.String(), "duration; default \"5m\"") {
		t.Errorf("%v: %s", err, b.String())
	}
	b.Reset()
	if err := settings.List(&b, "trainer.torch"); err != nil || !strings.Contains(b.String(), "trainer.torch.lora.rank = 0") || strings.Contains(b.String(), "trainer.lr ") {
		t.Errorf("%v: %s", err, b.String())
	}
	if err := settings.List(io.Discard, ""); err != nil {
		t.Error(err)
	}
}

// inRepository makes the paths of files in arguments those that tests see, and puts one that exists for a made-up one.
func inRepository(t *testing.T, args []string) []string {
	t.Helper()
	args = slices.Clone(args)
	for i, a := range args {
		if i > 0 && args[i-1] == "--config" {
			args[i] = "../../configs/demo.toml"
			if strings.HasPrefix(a, "configs/") {
				args[i] = "../../" + a
			}
		}
	}
	return args
}
