package verifiers

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

//go:embed launcher.py
var script string

// longestSaid is a line of the launcher, which has a task, in bytes.
const longestSaid = 16 << 20

// stopTime is how long a server may take to end by itself after SIGTERM, to give back what it holds elsewhere.
const stopTime = 5 * time.Second

// order is what launcher.py reads.
type order struct {
	Op       string         `json:"op"`
	ID       string         `json:"id"`
	Args     map[string]any `json:"args"`
	EvalArgs map[string]any `json:"eval_args"`
	Path     string         `json:"path"`
	Wire     string         `json:"wire"`
	Address  string         `json:"address,omitempty"`
	Rows     bool           `json:"rows"`
	Tasks    int            `json:"tasks"`
}

// line is what launcher.py says.
type line struct {
	Wire      string          `json:"wire"`
	Package   string          `json:"package"`
	Version   string          `json:"version"`
	Group     bool            `json:"group"`
	Split     *string         `json:"split"`
	Task      json.RawMessage `json:"task"`
	Ready     bool            `json:"ready"`
	Error     string          `json:"error"`
	Traceback string          `json:"traceback"`
}

// process is a Python process that hosts the environment. It ends when it is told to, with all that it has started.
type process struct {
	child *child.Process
	out   *child.Output
	once  sync.Once
	quit  chan struct{}
	dead  chan struct{} // closed when it has ended
	state error         // once dead
	said  *bufio.Scanner
	pipes []io.Closer
}

// start starts a process with an order. The caller reads what it says and ends it.
func start(python string, what order, record *child.Record) (*process, error) {
	p := &process{out: child.NewOutput(record, 0, nil), quit: make(chan struct{}), dead: make(chan struct{})}
	text, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("encode the options: %w", err)
	}
	orders, answers, err := p.spawn(python)
	if err != nil {
		return nil, err
	}
	go func() { _, _ = orders.Write(append(text, '\n')) }() // more than a pipe holds; it fails if the process has ended
	p.said = bufio.NewScanner(answers)
	p.said.Buffer(nil, longestSaid)
	p.pipes = []io.Closer{orders, answers}
	p.out.Note("--- process %d", p.child.Pid())
	go p.run()
	return p, nil
}

// run sees to the end of the process.
func (p *process) run() {
	select {
	case <-p.child.Ended():
		p.child.Kill() // what it has left behind
	case <-p.quit:
		p.child.End(stopTime)
	}
	<-p.child.Ended()
	for _, pipe := range p.pipes {
		_ = pipe.Close() // nobody is there
	}
	p.out.Note("--- process %d: %v", p.child.Pid(), p.child.State())
	if p.state = p.child.Err(); p.state == nil {
		p.state = errors.New("exit status 0")
	}
	close(p.dead)
}

func (p *process) spawn(python string) (orders, answers *os.File, err error) {
	theirs, orders, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("pipe to the process: %w", err)
	}
	defer theirs.Close()
	answers, end, err := os.Pipe()
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("pipe from the process: %w", err), orders.Close())
	}
	defer end.Close()
	cmd := exec.Command(python, "-c", script)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = theirs, p.out, p.out, []*os.File{end}
	cmd.Env = []string{"PYTHONUNBUFFERED=1", "PATH=" + paths(python)}
	if p.child, err = child.Start(cmd, syscall.SIGTERM); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start %s: %w", python, err), orders.Close(), answers.Close())
	}
	return orders, answers, nil
}

// paths is where programs are found: those that are installed beside the interpreter, such as uv, too.
func paths(python string) string {
	path := os.Getenv("PATH")
	if at, err := exec.LookPath(python); err == nil {
		if at, err = filepath.Abs(at); err == nil {
			path = filepath.Dir(at) + string(os.PathListSeparator) + path
		}
	}
	return path
}

// next is the next line that the process says. It ends the process and says why if there is none before ctx ends.
func (p *process) next(ctx context.Context) (line, error) {
	stop := context.AfterFunc(ctx, p.stop)
	defer stop()
	var l line
	if !p.said.Scan() {
		p.stop()
		<-p.dead
		if ctx.Err() != nil {
			return l, p.failure(fmt.Errorf("it was not ready in time (start_s): %w", context.Cause(ctx)))
		}
		return l, p.failure(errors.Join(p.said.Err(), p.state))
	}
	if err := json.Unmarshal(p.said.Bytes(), &l); err != nil {
		return l, p.failure(fmt.Errorf("it said %.200q", p.said.Text()))
	}
	if l.Error != "" {
		return l, &Error{Message: l.Error, Printed: l.Traceback}
	}
	return l, nil
}

// failure is an error with the last that the process has printed.
func (p *process) failure(err error) error {
	return &Error{Message: fmt.Sprintf("the process: %v", err), Printed: p.out.Tail()}
}

// dump lets Python print where it is.
func (p *process) dump() {
	if p.child.Signal(syscall.SIGUSR1) == nil {
		p.out.Settle()
	}
}

// stop lets the process end. It does not wait.
func (p *process) stop() {
	p.once.Do(func() { close(p.quit) })
}
