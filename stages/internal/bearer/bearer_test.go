package bearer

import (
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSource(t *testing.T) {
	dir := t.TempDir()
	file, empty, none := filepath.Join(dir, "token"), filepath.Join(dir, "empty"), filepath.Join(dir, "none")
	for path, text := range map[string]string{file: " s3cret\n", empty: "\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PRL_TEST_TOKEN", "s3cret")
	t.Setenv("PRL_TEST_EMPTY", " ")
	for _, c := range []struct {
		source Source
		url    string
		want   string // the token, or what is in the error
	}{
		{Source{}, "http://far", ""},
		{Source{Cleartext: true, Flags: true}, "http://far", ""},
		{Source{File: file}, "https://far", "s3cret"},
		{Source{Env: "PRL_TEST_TOKEN"}, "https://far", "s3cret"},
		{Source{File: file}, "http://localhost:1", "s3cret"},
		{Source{File: file}, "http://127.0.0.3:1", "s3cret"},
		{Source{File: file}, "http://[::1]:1", "s3cret"},
		{Source{File: file, Cleartext: true}, "http://far", "s3cret"},
		{Source{File: file}, "http://far", "error: use https, or set cleartext = true"},
		{Source{Env: "PRL_TEST_TOKEN", Flags: true}, "http://far", "error: use https, or set --cleartext where"},
		{Source{File: file}, "http://localhost.far", "error: as it is"},
		{Source{}, "https://me:s3cret@far", "error: name that in token_file"},
		{Source{Flags: true}, "https://me:s3cret@far", "error: name that in --token-file"},
		{Source{File: file, Env: "PRL_TEST_TOKEN"}, "https://far", "error: token_file and token_env: leave one out"},
		{Source{File: empty}, "https://far", "error: token_file: " + empty + " is empty"},
		{Source{File: none, Flags: true}, "https://far", "error: --token-file: open"},
		{Source{Env: "PRL_TEST_NOT_SET"}, "https://far", "error: token_env: the environment variable PRL_TEST_NOT_SET is not set"},
		{Source{Env: "PRL_TEST_EMPTY"}, "https://far", "error: or empty"},
	} {
		u, err := url.Parse(c.url)
		if err != nil {
			t.Fatal(err)
		}
		err = c.source.Check(u)
		if want, wrong := strings.CutPrefix(c.want, "error: "); wrong {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%+v to %s: error %v, want %q", c.source, c.url, err, want)
			}
			continue
		}
		if got, readErr := c.source.Token(); err != nil || readErr != nil || got != c.want {
			t.Errorf("%+v to %s: %q, %v, %v", c.source, c.url, got, err, readErr)
		}
	}
}

// A token that changes is read anew.
func TestRenewal(t *testing.T) {
	s := Source{File: filepath.Join(t.TempDir(), "token")}
	for _, text := range []string{"one", "two"} {
		if err := os.WriteFile(s.File, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Token(); err != nil || got != text {
			t.Errorf("%q, %v", got, err)
		}
	}
}

func TestMisplaced(t *testing.T) {
	var c struct{ Token Misplaced }
	if err := json.Unmarshal([]byte(`{"Token":"hush-hush"}`), &c); err == nil || strings.Contains(err.Error(), "hush") || !strings.Contains(err.Error(), "token_file") {
		t.Errorf("%v", err)
	}
}
