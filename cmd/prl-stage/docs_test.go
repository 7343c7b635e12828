package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/settings"
)

// pages are the texts in Markdown that somebody reads, by their path from the top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	top, list := repository(t), map[string]string{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (strings.HasPrefix(d.Name(), ".") || slices.Contains([]string{"runs", "bin", "testdata", "vendor"}, d.Name())):
			return fs.SkipDir
		case !strings.HasSuffix(d.Name(), ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(top, path)
		list[rel] = string(text)
		return err
	})
	if err != nil || len(list) < 12 {
		t.Fatalf("%d pages, %v", len(list), err)
	}
	return list
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// TestLinks follows the links within the repository: the file is there, and the heading, if one is named.
func TestLinks(t *testing.T) {
	followed := 0
	for path, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(withoutCode(text), -1) {
			target, heading, named := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			followed++
			at := filepath.Join(repository(t), filepath.Dir(path), target)
			if target == "" {
				at = filepath.Join(repository(t), path)
			}
			info, err := os.Stat(at)
			if err != nil {
				t.Errorf("%s: the link %s leads nowhere", path, m[1])
				continue
			}
			if !named {
				continue
			}
			if info.IsDir() { // its page is shown with it
				at = filepath.Join(at, "README.md")
			}
			there, err := os.ReadFile(at)
			if err != nil {
				t.Errorf("%s: the link %s names a heading of what is no page: %v", path, m[1], err)
			} else if !slices.Contains(anchors(string(there)), heading) {
				t.Errorf("%s: the link %s leads to no heading", path, m[1])
			}
		}
	}
	if followed < 40 {
		t.Errorf("only %d links followed", followed)
	}
}

var fenced = regexp.MustCompile("(?s)```.*?```")

func withoutCode(text string) string { return fenced.ReplaceAllString(text, "") }

// anchors are the headings of a page as links name them.
func anchors(text string) (list []string) {
	for line := range strings.Lines(withoutCode(text)) {
		if !strings.HasPrefix(line, "#") {
			continue
		}
		var b strings.Builder
		for _, r := range strings.ToLower(strings.TrimSpace(strings.TrimLeft(line, "#"))) {
			switch {
			case r == ' ' || r == '-':
				b.WriteByte('-')
			case r == '_' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r > 127:
				b.WriteRune(r)
			}
		}
		list = append(list, b.String())
	}
	return list
}

// begins is how a command line begins that is held to the flags there are.
var begins = regexp.MustCompile("(?:^|[\\s`(])((?:bin/)?prl-stage +--?[a-z][^`\n]*)")

// TestCommandsOfPages understands every command of the pages, in blocks of code and within sentences: its flags are there and of use to
// its stage, and so are the keys of --set, --explain and --config-keys.
func TestCommandsOfPages(t *testing.T) {
	found := 0
	for path, text := range pages(t) {
		text = strings.ReplaceAll(text, "\\\n", " ") // a command on several lines
		for _, m := range begins.FindAllStringSubmatch(paragraphs(text), -1) {
			found++
			if err := holds(t, m[1]); err != nil {
				t.Errorf("%s: %s: %v", path, m[1], err)
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d commands found", found)
	}
}

// paragraphs joins the lines of sentences, in which a command may go on behind the end of one.
func paragraphs(text string) string {
	var b strings.Builder
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		block := code || strings.HasPrefix(line, "    ") || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "#") || strings.TrimSpace(line) == ""
		if block {
			b.WriteString("\n" + line)
		} else {
			b.WriteString(strings.TrimSuffix(line, "\n") + " ")
		}
	}
	return b.String()
}

// holds reads a command line as main would, without running it. What stands for something (NAME, …) is no error.
func holds(t *testing.T, text string) error {
	t.Helper()
	for _, end := range []string{" #", " | ", " > ", " &", ";", ")"} {
		text, _, _ = strings.Cut(text, end)
	}
	args := shellWords(strings.TrimRight(strings.ReplaceAll(text, " … ", " "), " .,:\""))[1:]
	for i := 1; i < len(args); i++ {
		switch args[i-1] {
		case "--config":
			args[i] = existing(t, args[i], "configs/demo.toml")
		case "--tokenizer":
			args[i] = repository(t)
		}
		if strings.ToUpper(args[i]) != args[i] {
			continue
		}
		switch args[i-1] { // a word in capitals stands for a number
		case "--try", "--k", "--examples", "--rank", "--world-size", "--from-version", "--to-version":
			args[i] = "1"
		}
	}
	stageless := slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "--stage") || strings.HasPrefix(a, "--explain") || strings.HasPrefix(a, "--completion") || a == "--help" || a == "--config-keys"
	})
	if !stageless {
		args = append([]string{"--stage", "all"}, args...)
	}
	f, _, err := understood(args...)
	if err != nil {
		if f.Stage == "NAME" || f.Stage == "STAGE" { // any
			return nil
		}
		return err
	}
	known := settings.Names()
	for _, set := range f.Set {
		key, value, ok := strings.Cut(set, "=")
		if !ok {
			return fmt.Errorf("--set %s: want KEY=VALUE", set)
		}
		if key == strings.ToUpper(key) || strings.HasPrefix(key, "envs.") || strings.HasPrefix(key, "evals.") || strings.Contains(key, "NAME") {
			if len(settings.Below(strings.ReplaceAll(strings.ReplaceAll(key, ".NAME", ".<name>"), "KEY", "path"))) == 0 && strings.Contains(key, ".") {
				return fmt.Errorf("--set %s: no such key", key)
			}
			continue
		}
		if !slices.Contains(known, key) {
			return fmt.Errorf("--set %s: no such key", key)
		}
		if value != strings.ToUpper(value) || strings.ContainsAny(value, "0123456789") {
			if err := pipeline.LoadConfig("", nil, []string{set}, stages.DefaultConfig()); err != nil && strings.Contains(err.Error(), "cannot decode") {
				return err
			}
		}
	}
	return nil
}

// shellWords splits a command line at its blanks, those within quotes aside.
func shellWords(text string) (words []string) {
	var word strings.Builder
	quote := rune(0)
	for _, r := range text + " " {
		switch {
		case r == quote:
			quote = 0
		case quote == 0 && (r == '\'' || r == '"'):
			quote = r
		case quote == 0 && r == ' ':
			if word.Len() > 0 {
				words = append(words, word.String())
			}
			word.Reset()
		default:
			word.WriteRune(r)
		}
	}
	return words
}

// existing is a file of the repository, or another in its stead.
func existing(t *testing.T, path, instead string) string {
	t.Helper()
	at := filepath.Join(repository(t), path)
	if strings.HasPrefix(path, "configs/") || strings.HasPrefix(path, "deploy/") {
		return at // that one must be there
	}
	return filepath.Join(repository(t), instead)
}
