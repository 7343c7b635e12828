package pipeline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

type keyed struct {
	Base
	Name    string    `toml:"name"`
	Secret  Secret    `toml:"secret"`
	Refused misplaced `toml:"refused"`
	Hidden  int       `toml:"-"`
	Rate    *float64  `toml:"rate"`
	Wait    Duration  `toml:"wait"`
	Inner   struct {
		A []int `toml:"a"`
	} `toml:"inner"`
	Named map[string]inner `toml:"named"`
	Any   map[string]any   `toml:"any"`
	None  map[string]any   `toml:"none"`
}

type Base struct {
	Low int `toml:"low"`
}

type inner struct {
	B bool `toml:"b"`
}

func (*keyed) Prepare(map[string]any) {}
func (*keyed) Validate() error        { return nil }

// TestKeys lists the keys of a configuration: those of embedded structs and of tables of the user's names, too.
func TestKeys(t *testing.T) {
	c := &keyed{Named: map[string]inner{"y": {}, "x": {}}, Any: map[string]any{"deep": map[string]any{"er": 1}}}
	var names []string
	for _, k := range Keys(c) {
		names = append(names, k.Name)
	}
	want := []string{"low", "name", "secret", "rate", "wait", "inner.a", "named.x.b", "named.y.b", "any.deep.er", "none"}
	if !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
}

// TestNearest finds what was meant: a slip of the fingers, or the right key in another section. What is like nothing gets no answer.
func TestNearest(t *testing.T) {
	names := []string{"run.max_steps", "run.max_async_level", "trainer.lr", "trainer.lr_final", "inference.listen", "ui.listen", "broker.listen"}
	for name, want := range map[string]string{
		"run.max_step": "run.max_steps", "run.max_setps": "run.max_steps", "run.maxsteps": "run.max_steps", "max_async_level": "run.max_async_level",
		"tainer.lr": "trainer.lr", "run.listen": "inference.listen", "zzz": "", "completely.else": "",
	} {
		near := Nearest(name, names)
		if got := strings.Join(near[:min(1, len(near))], ""); got != want {
			t.Errorf("%s: %q, want %q", name, near, want)
		}
		if len(near) > 3 {
			t.Errorf("%s: %q are too many", name, near)
		}
	}
}

// TestUnknownKeyIsCorrected says what an unknown key may have been meant for, wherever it is written.
func TestUnknownKeyIsCorrected(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("low = 1\n[inner]\naa = [1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, env, set, want string }{
		{file: file, want: "c.toml:3: unknown key inner.aa: did you mean inner.a?"},
		{set: "nmae=1", want: "--set nmae: unknown key nmae: did you mean name?"},
		{env: "PRL__NAM=x", want: "environment variable PRL__NAM: unknown key nam: did you mean name?"},
		{set: "nothing_like_it=1", want: "--config-keys lists them"},
	} {
		err := LoadConfig(c.file, []string{c.env}, slices.DeleteFunc([]string{c.set}, func(s string) bool { return s == "" }), &keyed{})
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

// TestOrigins says where each setting comes from: the last place that sets it.
func TestOrigins(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.toml")
	if err := os.WriteFile(file, []byte("low = 1\nname = 'a'\n[named.x]\nb = true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Origins(file, []string{"PRL__SECRET=hunter2", "OTHER=1"}, []string{"name=b"})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]string{"low": file + ":1", "named.x.b": file + ":4", "name": "--set name", "secret": "environment variable PRL__SECRET"} {
		if got[key] != want {
			t.Errorf("%s: %q, want %q", key, got[key], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d keys: %v", len(got), got)
	}
}
