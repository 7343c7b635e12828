package bridge

import (
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

func TestName(t *testing.T) {
	for source, want := range map[string]string{
		"python:games:WordGame": "word-game", "python:a.b:Inner.My_Env2": "inner-my-env2", "python:games:HTTP": "http",
		"verifiers:gsm8k": "gsm8k", "verifiers:some-one/Word_Game@1.2": "word-game",
		"openenv:http://localhost:8000": "openenv-localhost-8000", "openenv:https://games.example.com/echo/": "openenv-games-example-com-echo",
	} {
		if got, err := Name(source); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", source, got, err, want)
		}
	}
	for _, source := range []string{"", "wordle", "ruby:games:WordGame", "python:", "python::_"} {
		if got, err := Name(source); err == nil {
			t.Errorf("%q is called %q", source, got)
		}
	}
}

func TestOpen(t *testing.T) {
	need.Python3(t)
	decode := func(text string) func(any) error {
		return func(config any) error {
			return toml.NewDecoder(strings.NewReader(text)).DisallowUnknownFields().Decode(config)
		}
	}
	e, err := Open("mine", "python:lockbox:Lockbox", "", decode("path = 'python/testdata'"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.(interface{ Close() error }).Close()
	if e.Info().Name != "mine" {
		t.Errorf("it calls itself %q", e.Info().Name)
	}
	for _, test := range []struct{ source, options, want string }{
		{"ruby:lockbox:Lockbox", "", "python:module:Class"},
		{"python:lockbox", "", "python:<module>:<class>"},
		{"openenv:localhost:8000", "", "openenv:<url>"},
		{"openenv:http://localhost:8000", "turns = 0", "turns"},
		{"verifiers:gsm8k", "python = 'no-such-python'", "no-such-python"},
		{"verifiers:gsm8k", "pool = 'big'", "elastic or static"},
		{"python:lockbox:Lockbox", "paths = 'x'", "strict"},
		{"python:lockbox:Lockbox", "turns = 0", "turns"},
	} {
		if _, err := Open("mine", test.source, "", decode(test.options)); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s with %q: %v, want %q", test.source, test.options, err, test.want)
		}
	}
}
