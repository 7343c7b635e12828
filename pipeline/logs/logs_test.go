package logs

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

// hostile is what a model or an environment could say to look like a line of the log, or to speak to a terminal.
const hostile = "ok\ntime=2026-01-01 level=ERROR msg=\"all is lost\"\r\x1b[2J\x1b]0;title\a\u009b31m\u202edlrow\u2028\xff\x00"

func TestHostileTextIsData(t *testing.T) {
	for _, format := range []string{Text, JSON} {
		var b bytes.Buffer
		log := New(&b, Options{Format: format})
		log.Info(hostile, "error", errors.New(hostile), hostile, hostile, "env", hostile, slog.Group(hostile, "x", hostile))
		out := b.String()
		if strings.Count(out, "\n") != 1 || !strings.HasSuffix(out, "\n") {
			t.Errorf("%s: more than one line: %q", format, out)
		}
		for _, c := range strings.TrimSuffix(out, "\n") {
			// JSON is for programs, which decode it: there only what ends a line or begins an escape matters.
			if c == 0x1b || c < ' ' || format == Text && !unicode.IsPrint(c) {
				t.Errorf("%s: %q on a terminal: %q", format, c, out)
			}
		}
	}
	shown := Plain(hostile)
	for _, c := range shown {
		if c != '\n' && c != '\t' && !unicode.IsPrint(c) {
			t.Errorf("%q in %q", c, shown)
		}
	}
	if want := "a\n\tü €\\x1b[0m\\xff\\u202e"; Plain("a\n\tü €\x1b[0m\xff\u202e") != want {
		t.Errorf("%q, want %q", Plain("a\n\tü €\x1b[0m\xff\u202e"), want)
	}
}

// TestKeysOnce holds lines to one value of a key: what a call says stands over what its logger says.
func TestKeysOnce(t *testing.T) {
	var b bytes.Buffer
	log := New(&b, Options{Format: JSON}).With("run", "demo", "stage", "all").With("stage", "sink")
	log.Info("x", "stage", "scorer", "group", 7)
	log.WithGroup("a").With("b", 1).Info("y", "run", "other")
	lines := strings.Split(b.String(), "\n")
	if strings.Count(lines[0], `"stage"`) != 1 {
		t.Errorf("a key stands twice: %s", lines[0])
	}
	var first, second map[string]any
	if err := errors.Join(json.Unmarshal([]byte(lines[0]), &first), json.Unmarshal([]byte(lines[1]), &second)); err != nil {
		t.Fatal(err)
	}
	if first["stage"] != "scorer" || first["run"] != "demo" || first["group"] != 7.0 {
		t.Errorf("%v", first)
	}
	if second["stage"] != "sink" || second["run"] != "demo" || second["a.b"] != 1.0 || second["a.run"] != "other" {
		t.Errorf("%v", second)
	}
}

func TestLevels(t *testing.T) {
	var terminal, file, wordle bytes.Buffer
	log := New(&terminal, Options{
		Format: Text, Level: slog.LevelWarn, EnvLevels: map[string]slog.Level{"wordle": slog.LevelDebug, "loud": slog.LevelError}, File: &file, FileLevel: slog.LevelInfo,
		EnvFile: func(env string) io.Writer {
			if env == "wordle" {
				return &wordle
			}
			return nil
		},
	})
	log.Debug("d")
	log.Info("i")
	log.Warn("w")
	log.With("env", "wordle").Debug("of wordle")
	log.Debug(Says, "env", "wordle", "text", "raw")
	log.Warn("of loud", "env", "loud")
	log.Debug("of other", "env", "other")
	for name, c := range map[string]struct{ got, want string }{
		"terminal": {messages(&terminal), "w,of wordle," + Says},
		"file":     {messages(&file), "i,w,of wordle," + Says},
		"wordle":   {messages(&wordle), "of wordle"},
	} {
		if c.got != c.want {
			t.Errorf("%s has %q, want %q", name, c.got, c.want)
		}
	}
}

func messages(b *bytes.Buffer) string {
	var all []string
	for line := range strings.Lines(b.String()) {
		_, rest, _ := strings.Cut(line, "msg=")
		if rest[0] == '"' {
			rest, _, _ = strings.Cut(rest[1:], `"`)
		} else {
			rest, _, _ = strings.Cut(strings.TrimSpace(rest), " ")
		}
		all = append(all, rest)
	}
	return strings.Join(all, ",")
}

// TestFileIsBounded holds a log to twice its size and a line, whoever writes it.
func TestFileIsBounded(t *testing.T) {
	dir := t.TempDir()
	const limit = 1000
	one, two := Open(dir, "x", limit), Open(dir, "x", limit)
	if one != two {
		t.Error("two uses of one log turn it apart")
	}
	line := strings.Repeat("y", 99) + "\n"
	for i := range 100 {
		for _, f := range []*File{one, two}[i%2:][:1] {
			if n, err := f.Write([]byte(line)); n != len(line) || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := two.Write([]byte("last\n")); err != nil {
		t.Fatal(err)
	}
	if err := two.Close(); err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, name := range []string{"x.log", "x.log.1"} {
		at, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if at.Mode().Perm() != 0o600 {
			t.Errorf("%s may be read by others: %v", name, at.Mode())
		}
		total += at.Size()
	}
	if total > 2*limit+2*int64(len(line)) || total < limit {
		t.Errorf("%d bytes in files of %d", total, limit)
	}
	newest, err := os.ReadFile(filepath.Join(dir, "x.log"))
	if err != nil || !strings.HasSuffix(string(newest), "last\n") {
		t.Errorf("the newest file ends with %.20q, %v", newest[max(0, len(newest)-20):], err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 2 {
		t.Errorf("files: %v", left)
	}
	if n, err := one.Write([]byte("lost")); n != 4 || err != nil {
		t.Error("a log that has ended fails who writes it")
	}
}

// TestFileWithoutAFolder writes where it cannot.
func TestFileWithoutAFolder(t *testing.T) {
	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, folder := range []string{"", filepath.Join(blocked, "below")} {
		f := Open(folder, "x", 10)
		if n, err := f.Write([]byte("abc")); n != 3 || err != nil {
			t.Errorf("%q: %d, %v", folder, n, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
