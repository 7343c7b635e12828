package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/stages/envserver/envs"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/settings"
	"github.com/prl-project/prl/stages/trainer"
)

// files stands for: the shell knows better, it is the name of a file.
const files = ":files"

// A line is a command line that somebody is typing.
type line struct {
	words  []string // before the one that is typed
	typed  string
	offset int // how much of what is typed the shell does not replace
	flags  []*kong.Flag
	names  map[string][]string // sections of the configuration that users name, by their kind
}

// complete prints what may stand for the last of the words, a line each, with what it means behind a tab. The first word names
// the shell: bash has the signs = as words of their own.
func complete(out io.Writer, words []string) {
	if len(words) < 2 {
		return
	}
	var f flags
	l := line{flags: newParser(&f).Model.Flags}
	l.take(words[0], words[1:])
	seen := map[string]bool{}
	for _, c := range l.candidates() {
		value, _, _ := strings.Cut(c, "\t")
		if c == files || strings.HasPrefix(value, l.typed) && !seen[value] {
			seen[value] = true
			fmt.Fprintln(out, c[min(l.offset, len(c)):])
		}
	}
}

func (l *line) take(shell string, words []string) {
	if shell == "bash" { // "--set", "run.max_steps", "=", "5" is "--set", "run.max_steps=5", of which bash replaces the 5
		var joined []string
		for i, w := range words {
			if n := len(joined); n > 0 && i > 0 && (w == "=" || words[i-1] == "=" && strings.HasSuffix(joined[n-1], "=")) {
				joined[n-1] += w
			} else {
				joined = append(joined, w)
			}
		}
		words = joined
	}
	l.words, l.typed = words[:len(words)-1], words[len(words)-1]
	if shell == "bash" {
		l.offset = strings.LastIndex(l.typed, "=") + 1
	}
	l.names = l.named()
}

// flag is the one of a name.
func (l *line) flag(name string) *kong.Flag {
	for _, f := range l.flags {
		if "--"+f.Name == name {
			return f
		}
	}
	return nil
}

// value is what a flag was given; empty where it was not.
func (l *line) value(name string) (value string) {
	for i, w := range l.words {
		if rest, ok := strings.CutPrefix(w, name+"="); ok {
			value = rest
		} else if i > 0 && l.words[i-1] == name {
			value = w
		}
	}
	return value
}

func (l *line) candidates() []string {
	if name, _, ok := strings.Cut(l.typed, "="); ok && strings.HasPrefix(name, "--") && l.flag(name) != nil {
		var list []string
		for _, v := range l.values(name, strings.TrimPrefix(l.typed, name+"=")) {
			if v != files {
				v = name + "=" + v
			}
			list = append(list, v)
		}
		return list
	}
	if n := len(l.words); n > 0 {
		last := l.words[n-1]
		if f := l.flag(last); f != nil && (!f.IsBool() || last == "--config-keys") && !strings.HasPrefix(l.typed, "-") {
			return l.values(last, l.typed)
		}
	}
	var list []string
	stage := l.value("--stage")
	for _, f := range l.flags {
		if !f.Hidden && (stage == "" || usedBy(f, stage)) {
			list = append(list, "--"+f.Name+"\t"+summary(f.Help))
		}
	}
	return list
}

func summary(text string) string {
	text, _, _ = strings.Cut(text, ". ")
	if r := []rune(text); len(r) > 80 {
		text = string(r[:79]) + "…"
	}
	return strings.TrimSuffix(text, ".")
}

// values are what may stand behind a flag.
func (l *line) values(name, typed string) (list []string) {
	switch name {
	case "--stage":
		for _, c := range commands() {
			list = append(list, c.name+"\t"+summary(c.does))
		}
	case "--env":
		list = slices.Concat(envs.Names(), l.names["envs"])
	case "--suite":
		list = l.names["evals"]
	case "--policy":
		list = append([]string{"latest"}, l.names["frozen"]...)
	case "--run":
		list = l.runs()
	case "--from":
		for _, run := range l.runs() {
			list = append(list, run+"@")
		}
	case "--backend":
		list = []string{inference.BackendNative, inference.BackendVLLM, inference.BackendSGLang, inference.BackendOpenAI}
	case "--learner":
		list = []string{trainer.LearnerNative, trainer.LearnerTorch, trainer.LearnerNull}
	case "--topic":
		list = []string{"traces", "samples", "eval_traces"}
	case "--completion":
		list = slices.Sorted(maps.Keys(scripts))
	case "--explain", "--config-keys":
		for _, s := range l.settings() {
			list = append(list, s.Key+"\t"+summary(s.Doc))
		}
	case "--set":
		list = l.set(typed)
	case "--config", "--token-file", "--tokenizer":
		list = []string{files}
	default:
		if f := l.flag(name); f != nil && f.Enum != "" {
			list = strings.Split(f.Enum, ",")
		}
	}
	return list
}

// set is what may stand behind --set: a key, and behind the sign = its values.
func (l *line) set(typed string) (list []string) {
	key, _, value := strings.Cut(typed, "=")
	for _, s := range l.settings() {
		switch {
		case !value:
			list = append(list, s.Key+"=\t"+summary(s.Doc))
		case s.Key != key:
		case s.Type == "true or false":
			list = append(list, key+"=true", key+"=false")
		case len(s.Values) > 0:
			for _, v := range s.Values {
				list = append(list, key+"="+strings.Trim(v, `"`))
			}
		case s.Default != "" && !strings.ContainsAny(s.Default, "[ `\\"):
			list = append(list, key+"="+strings.Trim(s.Default, `"`)+"\tthe default")
		}
	}
	return list
}

// settings are all keys, those of sections that users name once for each name.
func (l *line) settings() (list []settings.Setting) {
	for _, section := range settings.All() {
		kind, _, _ := strings.Cut(section.Name, ".")
		for _, s := range section.Settings {
			if !strings.Contains(s.Key, "<name>") {
				list = append(list, s)
				continue
			}
			for _, name := range l.names[kind] {
				one := s
				one.Key = strings.Replace(s.Key, "<name>", name, 1)
				list = append(list, one)
			}
		}
	}
	return list
}

// named are the names in the configuration, and of the environments also those that are built in.
func (l *line) named() map[string][]string {
	names := map[string][]string{"envs": envs.Names()}
	text, err := os.ReadFile(l.value("--config"))
	tree := map[string]any{}
	if err != nil || toml.Unmarshal(text, &tree) != nil {
		return names
	}
	for _, kind := range []string{"envs", "evals", "frozen"} {
		tables, _ := tree[kind].(map[string]any)
		names[kind] = slices.Compact(slices.Sorted(slices.Values(slices.AppendSeq(names[kind], maps.Keys(tables)))))
	}
	return names
}

// runs are the folders of runs.
func (l *line) runs() (list []string) {
	dir := "runs"
	if d := os.Getenv("PRL__DIR"); d != "" {
		dir = d
	}
	for _, w := range l.words {
		if d, ok := strings.CutPrefix(strings.TrimPrefix(w, "--set="), "dir="); ok {
			dir = d
		}
	}
	entries, err := filepath.Glob(filepath.Join(dir, "*", "*.toml")) // run.toml, config.toml
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if name := filepath.Base(filepath.Dir(e)); !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	return list
}

// scripts are, by shell, what makes it ask this binary. They hold nothing that changes.
var scripts = map[string]string{
	"bash": `# Completion of prl-stage for bash: source <(prl-stage --completion bash)
_prl_stage() {
    local value IFS=$'\n'
    COMPREPLY=()
    for value in $("${COMP_WORDS[0]}" --complete -- bash "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); do
        if [[ $value == :files ]]; then
            compopt -o default 2>/dev/null
            return
        fi
        value=${value%%$'\t'*}
        [[ $value == *[=@] ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$value")
    done
}
complete -F _prl_stage prl-stage
`,
	"zsh": `#compdef prl-stage
# Completion of prl-stage for zsh: source <(prl-stage --completion zsh), after compinit
_prl_stage() {
    local line value
    local -a plain open
    for line in "${(@f)$("${words[1]}" --complete -- zsh "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        [[ -z $line ]] && continue
        if [[ $line == :files ]]; then
            _files
            return
        fi
        value=${${line%%$'\t'*}//:/\\:}
        [[ $line == *$'\t'* ]] && value+=:${line#*$'\t'}
        if [[ ${line%%$'\t'*} == *[=@] ]]; then open+=("$value"); else plain+=("$value"); fi
    done
    (( $#plain )) && _describe -t values value plain
    (( $#open )) && _describe -t values value open -S ''
    return 0
}
compdef _prl_stage prl-stage
`,
	"fish": `# Completion of prl-stage for fish: prl-stage --completion fish | source
function __prl_stage
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] --complete -- fish $words[2..] 2>/dev/null)
    if test "$lines[1]" = :files
        __fish_complete_path (commandline -ct)
    else
        printf '%s\n' $lines
    end
end
complete -c prl-stage -f -a '(__prl_stage)'
`,
}
