package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/prl-project/prl/stages/settings"
)

// askFlags ask the binary something. They need no stage, and nothing is started.
type askFlags struct {
	ConfigKeys bool     `help:"List the keys of the configuration, or those below a prefix: --config-keys trainer.torch." for:"*"`
	Explain    string   `help:"Tell all of a key of the configuration, or of those of a section." placeholder:"KEY" for:"*"`
	Completion string   `help:"Print a script for completion in bash, zsh or fish." placeholder:"SHELL" for:"*"`
	Complete   bool     `hidden:"" help:"Print what may stand at the end of the words behind --." for:"*"`
	Ready      string   `hidden:"" help:"Ask a process whether it does its work, at the address of its telemetry; exits with 1 if not." placeholder:"HOST:PORT" for:"*"`
	Prefix     []string `arg:"" optional:"" hidden:""`
}

func (a askFlags) any() bool {
	return a.ConfigKeys || a.Explain != "" || a.Completion != "" || a.Complete || a.Ready != ""
}

// check refuses what cannot be answered.
func (a askFlags) check() error {
	switch {
	case a.Complete:
		return nil
	case a.ConfigKeys && len(a.Prefix) > 1, !a.ConfigKeys && len(a.Prefix) > 0:
		return fmt.Errorf("%q: nothing else is expected here", a.Prefix)
	case a.Completion != "" && scripts[a.Completion] == "":
		return fmt.Errorf("--completion %s: bash, zsh or fish", a.Completion)
	case a.Explain != "" && len(settings.Below(a.Explain)) == 0:
		return settings.Unknown(a.Explain)
	case a.ConfigKeys && len(settings.Below(strings.Join(a.Prefix, ""))) == 0:
		return settings.Unknown(a.Prefix[0])
	}
	return nil
}

// answer prints the answer; check has seen to it that there is one.
func (a askFlags) answer() {
	var err error
	switch {
	case a.Complete:
		complete(os.Stdout, a.Prefix)
	case a.Completion != "":
		_, err = fmt.Print(scripts[a.Completion])
	case a.Ready != "":
		err = askReady(a.Ready)
	case a.Explain != "":
		err = settings.Explain(os.Stdout, a.Explain)
	default:
		err = settings.List(os.Stdout, strings.Join(a.Prefix, ""))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "prl-stage:", err)
		os.Exit(1)
	}
}
