package child

import (
	"crypto/rand"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// killTime is how long [Process.Kill] waits for what it has killed.
const killTime = 2 * time.Second

// Process is one that this server has started. It is in a group of its own.
type Process struct {
	cmd    *exec.Cmd
	marker string // in the environment of all that it has started
	ended  chan struct{}
	err    error // once it has ended
}

// Start starts a command. It has this server's variables, the settings of prl aside, and those of the command. When this server
// ends, however it does, the process gets a signal, and five seconds later it is killed with all that it has started. The caller
// ends it with Kill, also where it has ended by itself.
func Start(cmd *exec.Cmd, end syscall.Signal) (*Process, error) {
	p := &Process{cmd: cmd, marker: "PRL_CHILD=" + rand.Text(), ended: make(chan struct{})}
	cmd.Env = append(append(variables(), cmd.Env...), p.marker)
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = attributes(end)
	started := make(chan error)
	go func() {
		// It gets the signal when the thread ends that has started it, so the thread is kept as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.ended)
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	if err := guarded.begin(p.Pid(), p.marker); err != nil {
		p.Kill()
		return nil, err
	}
	return p, nil
}

func variables() (vars []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "PRL_") {
			vars = append(vars, v)
		}
	}
	return vars
}

// Pid is the number of the process, and of its group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends the process a signal; an error if it has ended.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Ended is closed when the process has ended; what it has started may go on.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// State is how the process has ended, once it has.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Err is the error that its end was, once it has ended; nil where it ended well.
func (p *Process) Err() error { return p.err }

// End asks the process to end and gives it some time, to give back what it holds elsewhere; then it is killed.
func (p *Process) End(patience time.Duration) {
	_ = p.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.ended:
	case <-time.After(patience):
	}
	p.Kill()
}

// Kill ends the process, its group, and what has left the group, and waits until they are gone, but not for long.
func (p *Process) Kill() {
	kill(p.Pid(), p.marker)
	guarded.end(p.Pid())
	select {
	case <-p.ended:
	case <-time.After(killTime):
	}
}
