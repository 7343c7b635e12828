package python

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

//go:embed runner.py
var runner string

// setupTime is what Python may take to start and to shut itself in.
const setupTime = 30 * time.Second

// sandbox runs code in processes of their own. It is safe for concurrent use.
type sandbox struct {
	python     string   // the interpreter itself, behind links and wrappers that choose one
	prefixes   []string // where its libraries are
	namespaces bool     // the system lets processes have namespaces
	limits     limits
	slots      chan struct{} // as many as may run at once
}

// limits hold for one run of code.
type limits struct {
	time      time.Duration // from the moment the code begins
	memory    int64         // bytes of address space, of each process
	files     int64         // bytes of a file, and with namespaces of all files together
	processes int           // at once, threads included; with namespaces only
	output    int           // bytes of what is printed that are kept
}

// job is what the runner reads.
type job struct {
	Code     string            `json:"code"`
	Function string            `json:"function"`
	Calls    []json.RawMessage `json:"calls"` // arrays of arguments
	Limits   map[string]int64  `json:"limits"`
	Root     string            `json:"root"` // an empty folder for the new root; empty without namespaces
	Prefixes []string          `json:"prefixes"`
	User     int               `json:"user"` // to run the code as; 0 for whom the process is
}

// errSetup says that code could not be shut in; the code has not run.
var errSetup = errors.New("the code could not be shut in")

// run makes a job of code and calls and waits for it, at most for the time limit and the time it takes to start Python. What the
// code does is in the outcome, whatever it is. An error is one of the infrastructure: nothing of the code has run.
func (s *sandbox) run(ctx context.Context, code, function string, calls []json.RawMessage) (outcome, error) {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return outcome{}, fmt.Errorf("wait for a free process: %w", ctx.Err())
	}
	dir, err := os.MkdirTemp("", "prl-python-")
	if err != nil {
		return outcome{}, fmt.Errorf("folder for the code: %w", err)
	}
	defer os.RemoveAll(dir)
	return s.runIn(ctx, dir, code, function, calls)
}

// runIn runs in a folder that is empty. Every process that the code has started has ended when it returns: with namespaces they
// are all in one that ends with its first process, and without there is no other.
func (s *sandbox) runIn(ctx context.Context, dir, code, function string, calls []json.RawMessage) (outcome, error) {
	input, err := json.Marshal(s.job(dir, code, function, calls))
	if err != nil {
		return outcome{}, fmt.Errorf("encode the code: %w", err)
	}
	if user := codeUser(); user != 0 && !s.namespaces {
		if err := os.Chown(dir, user, user); err != nil {
			return outcome{}, fmt.Errorf("folder for the code: %w", err)
		}
	}
	results, write, err := os.Pipe()
	if err != nil {
		return outcome{}, fmt.Errorf("pipe for results: %w", err)
	}
	defer results.Close()
	printed := &head{limit: s.limits.output}
	cmd := exec.Command(s.python, "-s", "-S", "-B", "-c", runner)
	cmd.Dir = dir
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + s.home(dir), "LANG=C.UTF-8", "PYTHONHASHSEED=0", "PRL_FOLDER=" + dir}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(input), printed, printed
	cmd.ExtraFiles = []*os.File{write}
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = s.attributes()
	// The process dies with the thread that has started it (so it does not outlive a server that is killed): that stays until the end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err = cmd.Start()
	write.Close()
	if err != nil {
		return outcome{}, fmt.Errorf("start %s: %w", s.python, err)
	}
	r := &reading{calls: len(calls), ready: make(chan struct{})}
	read := make(chan bool, 1) // whether all results could be read
	go func() { read <- r.all(results) }()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()

	stopped, complete := "", false
	setup := time.NewTimer(setupTime)
	defer setup.Stop()
	var clock <-chan time.Time
	ready := r.ready
	for waiting := true; waiting; {
		select {
		case <-ready:
			setup.Stop()
			limit := time.NewTimer(s.limits.time)
			defer limit.Stop()
			clock, ready = limit.C, nil
			continue
		case complete = <-read:
			read = nil
			if complete {
				continue // the code may have closed the pipe; it ends by itself or by the clock
			}
			stopped = "results"
		case <-clock:
			stopped = "time"
		case <-setup.C:
			err = fmt.Errorf("%w: Python did not start within %v", errSetup, setupTime)
		case <-ctx.Done():
			err = ctx.Err()
		case <-ended:
			waiting = false
			ended = nil
		}
		waiting = waiting && stopped == "" && err == nil
	}
	kill(cmd.Process)
	if ended != nil {
		<-ended
	}
	if read != nil {
		_ = results.SetReadDeadline(time.Now().Add(time.Second)) // nobody writes any more
		complete = <-read
	}
	if err != nil {
		return outcome{}, err
	}
	if !r.begun {
		why := r.setup
		if why == "" {
			why = "Python ended before the code ran: " + strings.TrimSpace(printed.String())
		}
		return outcome{}, fmt.Errorf("%w: %s", errSetup, why)
	}
	if !complete && stopped == "" {
		stopped = "results"
	}
	return r.outcome(stopped, printed.String()), nil
}

// home is the one folder in which the code can write.
func (s *sandbox) home(dir string) string {
	if s.namespaces {
		return "/tmp"
	}
	return dir
}

func (s *sandbox) job(dir, code, function string, calls []json.RawMessage) job {
	j := job{Code: code, Function: function, Calls: calls, Limits: map[string]int64{
		"CPU": int64(s.limits.time/time.Second) + 2, "AS": s.limits.memory, "FSIZE": s.limits.files, "CORE": 0, "NOFILE": 64, "NPROC": 0,
	}}
	if s.namespaces {
		j.Limits["NPROC"] = int64(s.limits.processes)
		j.Root, j.Prefixes, j.User = dir, s.prefixes, codeUser()
	}
	return j
}

// nobody is the user that code runs as where the server is root.
const nobody = 65534

// codeUser is the user that code becomes: root's own processes are not held to the limit on their number. 0 is for the server's.
func codeUser() int {
	if os.Geteuid() == 0 {
		return nobody
	}
	return 0
}

// kill ends a process and its group. Where it is the first of a namespace all others there end with it.
func kill(p *os.Process) {
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	_ = p.Kill()
}
