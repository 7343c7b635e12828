package python

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
	"github.com/prl-project/prl/stages/envserver/env"
)

//go:embed runner.py
var script string

// runner starts processes that host the class.
type runner struct {
	cfg           Config
	module, class string
	path          string
	record        *child.Record
	quit          chan struct{} // closed when all processes are to end
}

// process hosts instances of the class. Its goroutine asks it one thing after the other and ends it when it fails.
type process struct {
	cfg   Config
	asks  chan *ask     // two for each episode at most: a call that was given up, and the end
	quit  chan struct{} // the runner's
	dead  chan struct{} // closed when it has ended with all its children
	why   error         // once dead
	gone  chan struct{} // an episode has left; to the pool
	child *child.Process
	pid   int // of it
	wire  *wire
	out   *child.Output

	episodes int // that it has; the pool's
}

// ask is a request on its way. Nobody asks any more once ctx has ended.
type ask struct {
	ctx    context.Context
	what   request
	answer chan answer // of one
}

// start starts a process and lets it import the class.
func (r *runner) start(rows bool) (*process, answer, error) {
	p := &process{
		cfg: r.cfg, asks: make(chan *ask, 2*r.cfg.Episodes), quit: r.quit, dead: make(chan struct{}), gone: make(chan struct{}),
	}
	p.out = child.NewOutput(r.record, int64(r.cfg.OutputMB)<<20, func() { p.wire.interrupt() })
	open := request{Op: "open", Module: r.module, Class: r.class, Path: r.path, Memory: int64(r.cfg.MemoryMB) << 20, Rows: rows}
	said := make(chan answer, 1)
	go p.run(open, said)
	select {
	case a := <-said:
		return p, a, nil
	case <-p.dead:
		return nil, answer{}, fmt.Errorf("start %s:%s: %w", r.module, r.class, p.why)
	}
}

// run starts the process, hands over what it says of the class, and serves until it fails or is to end.
func (p *process) run(open request, said chan<- answer) {
	defer close(p.dead)
	if err := p.spawn(); err != nil {
		p.why = err
		return
	}
	served := make(chan error, 1)
	go func() { served <- p.serve(open, said) }()
	var err error
	select {
	case err = <-served:
		p.child.Kill()
	case <-p.quit: // whatever it is at
		p.child.Kill()
		<-served
		err = errClosed
	}
	<-p.child.Ended()
	p.wire.close()
	p.out.Note("--- process %d: %v", p.pid, p.child.State())
	p.why = p.failure(err)
}

func (p *process) spawn() error {
	requests, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe to the process: %w", err)
	}
	defer requests.Close()
	out, answers, err := os.Pipe()
	if err != nil {
		return errors.Join(fmt.Errorf("pipe from the process: %w", err), in.Close())
	}
	defer answers.Close()
	p.wire = newWire(in, out, p.cfg.ReplyKB<<10)
	cmd := exec.Command(p.cfg.Python, "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = requests, answers, p.out, []string{"PYTHONHASHSEED=0"}
	if p.child, err = child.Start(cmd, syscall.SIGKILL); err != nil {
		p.wire.close()
		return fmt.Errorf("start %s: %w", p.cfg.Python, err)
	}
	p.pid = p.child.Pid()
	p.out.Note("--- process %d", p.pid)
	return nil
}

// serve returns why the process cannot go on.
func (p *process) serve(open request, said chan<- answer) error {
	a, err := p.exchange(open, p.cfg.StartS)
	if err != nil {
		return err
	}
	if err := a.err(); err != nil {
		return err
	}
	said <- a
	for {
		select {
		case <-p.child.Ended():
			return io.EOF
		case k := <-p.asks:
			if k.ctx.Err() != nil {
				continue
			}
			a, err := p.exchange(k.what, p.cfg.TimeoutS)
			if err != nil {
				return err
			}
			k.answer <- a
			if a.Fatal {
				return a.err()
			}
			if k.what.Op == "close" {
				p.gone <- struct{}{}
			}
		}
	}
}

// exchange asks and waits for the answer, for some seconds. An error ends the process.
func (p *process) exchange(what request, seconds float64) (answer, error) {
	p.out.Begin()
	limit := time.Duration(seconds * float64(time.Second))
	a, err := p.wire.exchange(what, limit)
	switch {
	case p.out.Over():
		return a, fmt.Errorf("%s: printed more than %d MiB (output_mb)", what, p.cfg.OutputMB)
	case os.IsTimeout(err):
		p.dump()
		return a, fmt.Errorf("%s: no answer in %v (timeout_s, start_s)", what, limit)
	case err != nil:
		return a, fmt.Errorf("%s: %w", what, err)
	}
	return a, nil
}

// dump lets Python print where it is.
func (p *process) dump() {
	if p.child.Signal(syscall.SIGUSR1) == nil {
		p.out.Settle()
	}
}

// failure says why a process that has been ended could not go on, with the last that it printed: that tells where Python was.
func (p *process) failure(err error) error {
	var said *Error
	switch {
	case errors.As(err, &said) || errors.Is(err, errClosed):
		return err
	case errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE):
		err = fmt.Errorf("the process ended (%v): %w", p.child.State(), err)
	}
	return &Error{Message: err.Error(), Printed: p.out.Tail()}
}

// ask asks something of an episode.
func (p *process) ask(ctx context.Context, what request) (answer, error) {
	k := &ask{ctx: ctx, what: what, answer: make(chan answer, 1)}
	select {
	case p.asks <- k:
	case <-p.dead:
		return answer{}, p.why
	case <-ctx.Done():
		return answer{}, fmt.Errorf("%s: wait for the process: %w", what, context.Cause(ctx))
	}
	select {
	case a := <-k.answer:
		return a, a.err()
	case <-ctx.Done():
		return answer{}, fmt.Errorf("%s: wait for the process: %w", what, context.Cause(ctx))
	case <-p.dead:
	}
	select {
	case a := <-k.answer: // the last it said
		return a, a.err()
	default:
		return answer{}, p.why
	}
}

// alive says that it has not ended.
func (p *process) alive() bool {
	select {
	case <-p.dead:
		return false
	default:
		return true
	}
}

// leave frees the instance of an episode. There is always room: it is the second ask at most that an episode has under way.
func (p *process) leave(episode int64) {
	select {
	case p.asks <- &ask{ctx: context.Background(), what: request{Op: "close", Episode: episode}, answer: make(chan answer, 1)}:
	case <-p.dead:
	}
}

// Error is a failure of the class or of its process. It implements [env.Traced].
type Error struct {
	Message string
	Printed string // Python's traceback, or the last that the process has printed
}

var _ env.Traced = (*Error)(nil)

func (e *Error) Error() string { return e.Message }

// Traceback implements [env.Traced].
func (e *Error) Traceback() string { return e.Printed }

// request and answer are the lines that runner.py describes.
type request struct {
	ID        int64           `json:"id"`
	Op        string          `json:"op"`
	Module    string          `json:"module,omitempty"`
	Class     string          `json:"class,omitempty"`
	Path      string          `json:"path,omitempty"`
	Memory    int64           `json:"memory"`
	Rows      bool            `json:"rows"`
	Episode   int64           `json:"episode,omitempty"`
	Row       json.RawMessage `json:"row,omitempty"`
	Seed      int64           `json:"seed"`
	Tool      string          `json:"tool,omitempty"`
	Arguments string          `json:"arguments,omitempty"`
}

func (r request) String() string {
	if r.Op == "call" {
		return "call of " + r.Tool
	}
	return r.Op
}

type answer struct {
	ID          int64               `json:"id"`
	Tools       []env.Tool          `json:"tools"`
	Rows        json.RawMessage     `json:"rows"`
	Version     string              `json:"version"`
	Observation *string             `json:"observation"`
	Text        string              `json:"text"`
	Refused     *string             `json:"refused"`
	Done        bool                `json:"done"`
	Rewards     map[string]*float64 `json:"rewards"`
	Error       string              `json:"error"`
	Traceback   string              `json:"traceback"`
	Fatal       bool                `json:"fatal"`
}

// err is what the class raised; nil if it did not.
func (a answer) err() error {
	if a.Error == "" {
		return nil
	}
	return &Error{Message: a.Error, Printed: a.Traceback}
}
