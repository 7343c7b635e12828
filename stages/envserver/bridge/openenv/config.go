package openenv

import (
	"errors"
	"fmt"
	"math"
	"net/url"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/internal/bearer"
)

// Config holds the options.
type Config struct {
	// Command starts the server, if it does not run already; default none. It is started again when it has ended.
	Command []string `toml:"command" json:"command"`

	File        string `toml:"file" json:"file"`                 // JSONL with tasks; default none: numbers
	Tasks       int    `toml:"tasks" json:"tasks"`               // number of them where they are numbers, at least 2; default 1024
	EvalPercent int    `toml:"eval_percent" json:"eval_percent"` // share that is held out, 1 to 50; default 20
	Turns       int    `toml:"turns" json:"turns"`               // replies, 1 to 10000; default 32

	System  string   `toml:"system" json:"system"`   // a system message in front of everything; default none
	Actions string   `toml:"actions" json:"actions"` // auto (default), text, step or tools: what the policy's replies become
	Field   string   `toml:"field" json:"field"`     // of the action, that gets the reply's text; default the only one it can be
	Show    []string `toml:"show" json:"show"`       // fields of the observation that the policy sees; default all
	Alt     string   `toml:"alt" json:"alt"`         // what a model without eyes sees in place of an image; default none

	Reward string `toml:"reward" json:"reward"` // last (default) or sum of the steps' rewards
	Raises string `toml:"raises" json:"raises"` // whose fault an exception in step is: server (default) or policy
	State  bool   `toml:"state" json:"state"`   // ask for the state at the end, and record its numbers as metrics; default false

	Sessions int     `toml:"sessions" json:"sessions"`   // at most, 1 to 10000; default 256, and fewer where the server says so
	Episodes int     `toml:"episodes" json:"episodes"`   // one after the other in a session, 1 to 1000000; default 1
	IdleS    float64 `toml:"idle_s" json:"idle_s"`       // seconds that a session is kept for the next episode, 0.01 to 3600; default 10
	StartS   float64 `toml:"start_s" json:"start_s"`     // seconds for the server to answer at the start, 0.01 to 3600; default 60
	TimeoutS float64 `toml:"timeout_s" json:"timeout_s"` // seconds for one answer, 0.01 to 3600; default 20
	PingS    float64 `toml:"ping_s" json:"ping_s"`       // seconds between signs of life of a quiet session, 0.01 to 3600; default 20
	ReplyKB  int     `toml:"reply_kb" json:"reply_kb"`   // KiB of an answer, 1 to 1048576; default 8192

	// TokenFile or TokenEnv names the file or the environment variable with a bearer token; default none. It is read for every request.
	TokenFile string `toml:"token_file" json:"token_file"`
	TokenEnv  string `toml:"token_env" json:"token_env"`
	// Cleartext lets a token be sent without TLS to another machine; default false.
	Cleartext bool `toml:"cleartext" json:"cleartext"`
}

// Defaults suit a server that others have written, with an observation that says all.
func Defaults() Config {
	return Config{
		Tasks: 1024, EvalPercent: 20, Turns: 32, Actions: "auto", Reward: "last", Raises: "server",
		Sessions: 256, Episodes: 1, IdleS: 10, StartS: 60, TimeoutS: 20, PingS: 20, ReplyKB: 8192,
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	for _, o := range []struct {
		option      string
		v, from, to int
	}{
		{"tasks", c.Tasks, 2, 1 << 24}, {"eval_percent", c.EvalPercent, 1, 50}, {"turns", c.Turns, 1, 10000},
		{"sessions", c.Sessions, 1, 10000}, {"episodes", c.Episodes, 1, 1e6}, {"reply_kb", c.ReplyKB, 1, 1 << 20},
	} {
		refuse(o.v < o.from || o.v > o.to, "%s = %d: want %d to %d", o.option, o.v, o.from, o.to)
	}
	for _, o := range []struct {
		option string
		v      float64
	}{{"idle_s", c.IdleS}, {"start_s", c.StartS}, {"timeout_s", c.TimeoutS}, {"ping_s", c.PingS}} {
		refuse(math.IsNaN(o.v) || o.v < 0.01 || o.v > 3600, "%s = %v: want 0.01 to 3600", o.option, o.v)
	}
	for _, o := range []struct {
		option, v string
		of        []string
	}{
		{"actions", c.Actions, []string{"auto", "text", "step", "tools"}}, {"reward", c.Reward, []string{"last", "sum"}},
		{"raises", c.Raises, []string{"server", "policy"}},
	} {
		known := false
		for _, v := range o.of {
			known = known || o.v == v
		}
		refuse(!known, "%s = %q: want %s", o.option, o.v, strings.Join(o.of, ", "))
	}
	refuse(len(c.Command) > 0 && c.Command[0] == "", `command = %q: want a program and its arguments, such as ["uvicorn", "my_env.server.app:app", "--port", "8000"]`, c.Command)
	refuse(c.Field != "" && c.Actions != "auto" && c.Actions != "text", `field = %q has no effect with actions = %q; leave it out`, c.Field, c.Actions)
	return errors.Join(append(errs, c.bearer().Validate())...)
}

// base is where the server of a target is: http://host:8000, with or without a path.
func (c Config) base(target string) (*url.URL, error) {
	u, err := url.Parse(target)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("want openenv:<url> with a URL such as http://localhost:8000")
	}
	return u, c.bearer().Check(u)
}

func (c Config) bearer() bearer.Source {
	return bearer.Source{File: c.TokenFile, Env: c.TokenEnv, Cleartext: c.Cleartext}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
