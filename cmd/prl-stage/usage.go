package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/settings"
	"github.com/prl-project/prl/stages/top"
)

// A command is what --stage may name: a stage of the flow, or what is done to a whole run.
type command struct {
	name, does string
	// reads and writes say in words what a stage of the flow does to topics.
	reads, writes, key string
	// sections are those of the configuration that it reads beside those which all read.
	sections []string
	examples []string
}

// shared are the sections that everything reads.
var shared = []string{"run", "kafka", "schema_registry", "blobs", "log", "tracing"}

// special are those that are no stage of the flow.
var special = []command{
	{
		name: allName, does: "everything here, from one command, with an embedded broker unless --brokers names a cluster",
		sections: []string{"envs.<name>", "evals.<name>", "model", "trainer", "ui"},
		examples: []string{"--config configs/demo.toml", "--config configs/demo.toml --run second --set run.seed=2", "--config configs/demo.toml --fresh", "--run again --from demo@40 --set trainer.lr=0.001"},
	},
	{
		name: brokerName, does: "the embedded broker, for the stages of a run on this machine", sections: []string{"broker"},
		examples: []string{"--config configs/demo.toml"},
	},
	{
		name: stages.SetupName, does: "makes or checks the topics of a run and ends, for stages that may not", writes: "the topics themselves",
		examples: []string{"--config configs/demo.toml --brokers kafka:9092"},
	},
	{
		name: stages.AuditName, does: "holds what a run has left behind to what must always hold; exits with 1 if it does not", reads: "every topic",
		examples: []string{"--run demo"},
	},
	{
		name: top.Name, does: "shows a run that goes on in the terminal: stages, lag, throughput, what holds it up, what is wrong", reads: "what the page reads",
		examples: []string{"--run demo", "--run demo --brokers kafka:9092", "--run demo --brokers kafka:9092 --once", "--run demo --json"},
	},
	{
		name: stages.ReplayName, does: "looks at what a run has recorded under other settings", reads: "traces or samples, from topics or Parquet", sections: []string{"scorer", "packer"},
		examples: []string{"--run demo", "--run demo --set run.max_off_policy_steps=2", "--run demo --mode regenerate --env wordle --policy 40"},
	},
}

const (
	allName    = "all"
	brokerName = "broker"
)

// beside are the sections and examples of stages of the flow, where there is more than the section of their name.
var beside = map[string]command{
	"emitter": {sections: []string{"emitter", "envs.<name>"}},
	"inference": {sections: []string{"inference", "frozen.<name>"}, examples: []string{
		"--config configs/demo.toml --brokers kafka:9092", "--config run.toml --backend vllm --url http://localhost:8100",
	}},
	"envserver": {sections: []string{"envserver", "envs.<name>"}, examples: []string{
		"--env wordle --brokers kafka:9092", "--env wordle --play", "--env wordle --try 20 --url http://localhost:8000", "--env wordle --serve http://127.0.0.1:8000",
	}},
	"trainer": {sections: []string{"trainer", "model"}, examples: []string{
		"--config configs/demo.toml --brokers kafka:9092", "--config run.toml --learner torch --rank 0 --world-size 2 --rendezvous gpu-0:29500",
	}},
	"eval": {sections: []string{"evals.<name>"}, examples: []string{
		"--config configs/demo.toml --brokers kafka:9092", "--run demo --env wordle", "--run demo --env wordle --policy 40 --k 4",
	}},
	"cleanup": {sections: []string{"cleanup"}, examples: []string{"--run demo --brokers kafka:9092 --set cleanup.every=10m"}},
	"ui":      {sections: []string{"ui"}, examples: []string{"--run demo"}},
	"board":   {sections: []string{"board"}, examples: []string{"--run demo", "--config run.toml --brokers kafka:9092"}},
	"export": {sections: []string{"export"}, examples: []string{
		"--run demo --env wordle --min-reward 2 --best 4", "--run demo --test-share 0.1 --out demo-sft --format parquet", "--run demo --follow --min-reward 2 --out demo-live",
	}},
	"shadow": {sections: []string{"shadow", "trainer"}, examples: []string{
		"--run demo --shadow slow --set trainer.lr=0.0003", "--run demo --shadow late --from-version 40 --set trainer.loss='\"ppo\"'",
	}},
}

// commands are all there are.
func commands() []command {
	list := slices.Clone(special)
	for _, s := range stages.Flow {
		c := command{name: s.Name, does: s.Does, reads: strings.Join(s.Reads, ", "), writes: strings.Join(s.Writes, ", "), key: s.Key}
		if len(s.Tables) > 0 {
			c.reads = strings.TrimPrefix(c.reads+"; whole: "+strings.Join(s.Tables, ", "), "; ")
		}
		c.sections, c.examples = beside[s.Name].sections, beside[s.Name].examples
		if c.sections == nil && len(settings.Below(s.Name)) > 0 {
			c.sections = []string{s.Name}
		}
		if c.examples == nil {
			c.examples = []string{"--config configs/demo.toml --brokers kafka:9092"}
		}
		list = append(list, c)
	}
	return list
}

func findCommand(name string) (command, error) {
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	meant := ""
	if near := pipeline.Nearest(name, names); len(near) > 0 {
		meant = fmt.Sprintf(": did you mean %s?", strings.Join(near, " or "))
	}
	return command{}, fmt.Errorf("there is no stage %q%s (--help lists them)", name, meant)
}

// help is the flag --help. It is read after all others, so that it knows the stage.
type help bool

// newParser makes the parser of the flags; it does not end the process by itself.
func newParser(f *flags) *kong.Kong {
	return kong.Must(f, kong.Name("prl-stage"), kong.NoDefaultHelp(), kong.Writers(os.Stdout, os.Stderr))
}

// parse reads the command line, and ends the process where it is wrong or asks for help.
func parse(f *flags, args []string) {
	parser := newParser(f)
	helped, err := understand(parser, f, args, os.Stdout)
	if err != nil {
		hint := ""
		if _, err := findCommand(f.Stage); err == nil {
			hint = "--stage " + f.Stage + " "
		}
		parser.Errorf("%s", err)
		fmt.Fprintf(os.Stderr, "See prl-stage %s--help.\n", hint)
		os.Exit(2)
	}
	if helped {
		os.Exit(0)
	}
}

// understand reads the command line. It refuses flags that the stage has no use for, and answers --help on out.
func understand(parser *kong.Kong, f *flags, args []string, out io.Writer) (helped bool, err error) {
	ctx, err := parser.Parse(args)
	if err != nil {
		return false, err
	}
	if f.Stage != "" {
		if _, err := findCommand(f.Stage); err != nil {
			return false, err
		}
	}
	switch {
	case bool(f.Help) && f.Stage == "":
		return true, printHelp(out, parser)
	case bool(f.Help):
		return true, printStageHelp(out, parser, f.Stage)
	case f.Ask.any():
		return false, f.Ask.check()
	case len(f.Ask.Prefix) > 0:
		return false, fmt.Errorf("%q is no flag, and nothing else is expected here", f.Ask.Prefix)
	case f.Stage == "":
		return false, fmt.Errorf("--stage NAME is missing: what is to run (--stage all --config configs/demo.toml is the demo)")
	}
	for _, p := range ctx.Path {
		if p.Flag != nil && !usedBy(p.Flag, f.Stage) {
			return false, fmt.Errorf("--%s has no use with --stage %s: it is for %s", p.Flag.Name, f.Stage, strings.Join(usersOf(p.Flag), ", "))
		}
	}
	return false, nil
}

// usersOf are the stages that a flag is for, by its tag.
func usersOf(flag *kong.Flag) (names []string) {
	for _, word := range strings.Fields(flag.Tag.Get("for")) {
		if word != "flow" {
			names = append(names, word)
			continue
		}
		for _, s := range stages.Flow {
			names = append(names, s.Name)
		}
	}
	return names
}

func usedBy(flag *kong.Flag, stage string) bool {
	users := usersOf(flag)
	return slices.Contains(users, "*") || slices.Contains(users, stage)
}

func printHelp(out io.Writer, parser *kong.Kong) error {
	fmt.Fprint(out, `prl trains language models with reinforcement learning: every hop is a Kafka topic, every stage can be killed at any time, every rollout
can be asked with SQL.

  prl-stage --stage all --config configs/demo.toml             the demo: a model learns three games on this machine
  prl-stage --stage all --config configs/demo.toml --dry-run   what it would take, and whether all it needs is there
  prl-stage --stage NAME --help                                all about one stage
  prl-stage --explain run.max_steps                            what a setting means; --config-keys lists them all
  source <(prl-stage --completion bash)                        completion of flags, names and settings; also zsh, fish

Stages:
`)
	for _, c := range commands() {
		fmt.Fprintf(out, "  %-10s %s\n", c.name, c.does)
	}
	fmt.Fprintf(out, "\nFlags of all stages:\n")
	printFlags(out, parser, func(f *kong.Flag) bool { return usedBy(f, "") })
	fmt.Fprintf(out, "\nSettings come from --config, then from variables PRL__SECTION__KEY, then from --set, each over the ones before.\n")
	return nil
}

func printStageHelp(out io.Writer, parser *kong.Kong, stage string) error {
	c, err := findCommand(stage)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "prl-stage --stage %s: %s.\n\n", c.name, c.does)
	for _, line := range [][2]string{{"reads", c.reads}, {"writes", c.writes}, {"divided by", c.key}} {
		if line[1] != "" {
			fmt.Fprintf(out, "  %-10s %s\n", line[0], line[1])
		}
	}
	if c.reads+c.writes+c.key != "" {
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, "Examples:")
	for _, e := range c.examples {
		fmt.Fprintf(out, "  prl-stage --stage %s %s\n", c.name, e)
	}
	fmt.Fprintln(out, "\nIts flags:")
	own := func(f *kong.Flag) bool { return usedBy(f, c.name) && !usedBy(f, "") }
	if printFlags(out, parser, own) == 0 {
		fmt.Fprintln(out, "  none but those of all stages")
	}
	fmt.Fprintln(out, "\nFlags of all stages:")
	printFlags(out, parser, func(f *kong.Flag) bool { return usedBy(f, "") })
	if len(c.sections) > 0 {
		fmt.Fprintln(out, "\nIts settings (prl-stage --explain KEY tells all of one):")
		for _, name := range c.sections {
			for _, section := range settings.Below(name) {
				if section.Of == "" {
					settings.Lines(out, section.Settings)
				}
			}
		}
	}
	var have []string
	for _, name := range shared {
		if len(settings.Below(name)) > 0 {
			have = append(have, name)
		}
	}
	fmt.Fprintf(out, "\nAll stages read brokers, dir, telemetry and the sections %s: prl-stage --config-keys run lists one.\n", strings.Join(have, ", "))
	return nil
}

// printFlags prints the flags that are wanted and counts them.
func printFlags(out io.Writer, parser *kong.Kong, wanted func(*kong.Flag) bool) (n int) {
	const column, width = 28, 130
	for _, f := range parser.Model.Flags {
		if f.Hidden || !wanted(f) {
			continue
		}
		n++
		name := "--" + f.Name
		if f.Short != 0 {
			name = fmt.Sprintf("-%c, %s", f.Short, name)
		}
		if !f.IsBool() {
			name += "=" + f.FormatPlaceHolder()
		}
		line := fmt.Sprintf("  %-*s", column-2, name)
		if len(line) > column {
			fmt.Fprintln(out, line)
			line = strings.Repeat(" ", column)
		}
		for word := range strings.FieldsSeq(f.Help) {
			if len(line)+1+len(word) > width {
				fmt.Fprintln(out, line)
				line = strings.Repeat(" ", column)
			}
			line += " " + word
		}
		fmt.Fprintln(out, line)
	}
	return n
}
