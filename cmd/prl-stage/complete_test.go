package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// offers are what is offered for the last word of a line, without what it means.
func offers(shell, line string) (list []string) {
	var b bytes.Buffer
	complete(&b, append([]string{shell}, strings.Split(line, " ")...))
	for l := range strings.Lines(b.String()) {
		value, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		list = append(list, value)
	}
	return list
}

// completions are lines, what must be offered at their end, and what must not.
var completions = map[string]struct{ with, without []string }{
	"--st":                                             {[]string{"--stage"}, []string{"--set"}},
	"--stage ":                                         {[]string{"all", "trainer", "replay"}, []string{"--set"}},
	"--stage tr":                                       {[]string{"trainer"}, []string{"all"}},
	"--stage trainer --":                               {[]string{"--learner", "--set", "--dry-run"}, []string{"--env", "--child", "--complete"}},
	"--stage envserver --env w":                        {[]string{"wordle"}, []string{"catch"}},
	"--stage trainer --learner ":                       {[]string{"native", "torch"}, nil},
	"--stage all --log-level ":                         {[]string{"debug", "warn"}, nil},
	"--stage eval --run d":                             {[]string{"demo"}, []string{"empty", "other"}},
	"--stage all --from ":                              {[]string{"demo@"}, nil},
	"--stage scorer --set run.m":                       {[]string{"run.max_steps=", "run.max_async_level="}, []string{"run.seed=", "trainer.lr="}},
	"--explain trainer.torch.d":                        {[]string{"trainer.torch.device", "trainer.torch.dtype"}, nil},
	"--config-keys trainer.t":                          {[]string{"trainer.torch.python"}, nil},
	"--completion ":                                    {[]string{"bash", "fish", "zsh"}, nil},
	"--config mine.toml --stage envserver --env ":      {[]string{"wordle", "chess"}, nil},
	"--config mine.toml --set envs.chess.g":            {[]string{"envs.chess.group_size="}, nil},
	"--config mine.toml --stage eval --suite ":         {[]string{"hard"}, nil},
	"--config mine.toml --stage eval --policy ":        {[]string{"latest", "old"}, nil},
	"--stage replay --mode re":                         {[]string{"recompute", "rescore", "regenerate"}, []string{"train"}},
	"--stage trainer --set packer.overlong=":           {nil, nil}, // by shell, below
	"--config ":                                        {[]string{files}, nil},
	"--stage envserver --env catch --serve nonsense ":  {[]string{"--set"}, nil},
	"--stage nonsense --wrong --set nothing.like.it= ": {nil, []string{"--learner"}},
}

// TestComplete asks for what may stand at the end of lines.
func TestComplete(t *testing.T) {
	inWorld(t)
	for line, c := range completions {
		got := offers("zsh", line)
		for _, want := range c.with {
			if !slices.Contains(got, want) {
				t.Errorf("%q: %q lacks %s", line, got, want)
			}
		}
		for _, no := range c.without {
			if slices.Contains(got, no) {
				t.Errorf("%q offers %s", line, no)
			}
		}
	}
	for line, want := range map[string][]string{
		"--set packer.overlong=":  {"packer.overlong=drop", "packer.overlong=cut", "packer.overlong=error"},
		"--set=packer.overlong=c": {"--set=packer.overlong=cut"},
		"--set ui.enabled=":       {"ui.enabled=true", "ui.enabled=false"},
	} {
		if got := offers("fish", line); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	}
	for line, want := range map[string][]string{ // bash has = as a word
		"--set packer.overlong = ":     {"drop", "cut", "error"},
		"--set packer.overlong = c":    {"cut"},
		"--set = packer.overlong = c":  {"cut"},
		"--stage = tr":                 {"trainer"},
		"--stage trainer --learner = ": {"native", "torch", "null"},
	} {
		if got := offers("bash", line); !slices.Equal(got, want) {
			t.Errorf("bash %q: %q, want %q", line, got, want)
		}
	}
	complete(&bytes.Buffer{}, nil)
	complete(&bytes.Buffer{}, []string{"bash"})
}

// inWorld goes to a folder with a run and a configuration.
func inWorld(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for path, text := range map[string]string{
		"runs/demo/run.toml": "", "runs/demo/config.toml": "", "runs/empty/x": "", "other/run.toml": "",
		"mine.toml": "[envs.chess]\nsource = 'python:a:B'\n[evals.hard]\nenv = 'chess'\n[frozen.old]\nfolder = '/x'\n",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(dir)
	return dir
}

// TestCompletionInShells lets each shell that is here load its script and complete lines.
func TestCompletionInShells(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := inWorld(t)
	if err := os.Symlink(self, filepath.Join(dir, "prl-stage")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PRL_TEST_MAIN", "1")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for shell, ask := range map[string]func(line string) []string{"bash": askBash, "zsh": askZsh, "fish": askFish} {
		t.Run(shell, func(t *testing.T) {
			path, err := exec.LookPath(shell)
			if shell == "bash" && err != nil {
				t.Fatal("no bash, which Makefile needs, too")
			}
			need.That(t, err == nil, "PRL_TEST_SHELLS", "no "+shell+" on PATH (Debian: apt-get install "+shell+")")
			for line, want := range map[string]string{
				"prl-stage --stage trai":             "trainer",
				"prl-stage --stage all --run de":     "demo",
				"prl-stage --stage scorer --dry":     "--dry-run",
				"prl-stage --set run.max_async_l":    "run.max_async_level=",
				"prl-stage --set packer.overlong=er": "error",
				"prl-stage --config mine.to":         "mine.toml",
			} {
				cmd := exec.CommandContext(t.Context(), path, ask(line)...)
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%q: %v\n%s", line, err, out)
				}
				found := slices.ContainsFunc(strings.Fields(string(out)), func(word string) bool {
					return word == want || shell != "bash" && strings.HasSuffix(word, "="+want)
				})
				if !found {
					t.Errorf("%q: %q, want %s", line, out, want)
				}
			}
		})
	}
}

// askBash completes a line as readline would: its words are split at signs =, too. Files bash completes itself: it is asked for them.
func askBash(line string) []string {
	words := strings.Fields(strings.ReplaceAll(line, "=", " = "))
	quoted := "'" + strings.Join(words, "' '") + "'"
	return []string{"--norc", "-c", fmt.Sprintf(`source <(prl-stage --completion bash)
complete -p prl-stage >/dev/null || exit 3
compopt() { [[ "$2" == default ]] && compgen -f -- "${COMP_WORDS[COMP_CWORD]}"; return 0; }
COMP_WORDS=(%s); COMP_CWORD=%d; COMP_LINE='%s'; COMP_POINT=%d
_prl_stage
printf '%%s\n' "${COMPREPLY[@]}"`, quoted, len(words)-1, line, len(line))}
}

// askZsh completes a line in a terminal of zsh's own (zpty), as a user would by the tabulator.
func askZsh(line string) []string {
	return []string{"-f", "-c", fmt.Sprintf(`zmodload zsh/zpty
zpty shell 'TERM=dumb PS1= zsh -f -i'
zpty -w shell 'PROMPT=; RPROMPT=; unsetopt zle_bracketed_paste prompt_cr prompt_sp; setopt no_list_beep; autoload -Uz compinit; compinit -u -D; source <(prl-stage --completion zsh); show() { print -r -- "<<$BUFFER>>"; zle kill-whole-line; }; zle -N show; bindkey "^X" show; print re''ady'
zpty -r shell text '*ready*' || exit 3
zpty -w -n shell '%s'$'\t\x18'
zpty -r shell text '*<<*>>*' || exit 4
print -r -- "${${text##*<<}%%%%>>*}" | tr -d '\r'`, line)}
}

func askFish(line string) []string {
	return []string{"--no-config", "-c", fmt.Sprintf("prl-stage --completion fish | source; complete -C '%s'", line)}
}
