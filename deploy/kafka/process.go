package kafka

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// supervise runs its arguments as a child, tells its process id on file 4, and kills and buries it when file 3 ends: the
// parent holds the other end and never writes, so that happens when it closes it and when it dies, however it does.
// The child keeps file 4 open, which says until when it lives.
const supervise = `"$@" 3<&- </dev/null & echo $! >&4; exec 4>&-; read -r _ <&3; kill -KILL $! 2>&-; wait`

// A process is a command in a session of its own that dies with this process.
type process struct {
	shell *exec.Cmd
	pid   int           // of the command
	hold  *os.File      // the end of file 3; closing it kills the command
	ended chan struct{} // closed when both the command and the shell are gone
}

// startProcess starts a command; what it says is appended to the file log.
func startProcess(log string, command []string) (p *process, err error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	held, hold, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer held.Close()
	life, alive, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, hold.Close())
	}
	p = &process{shell: exec.Command("sh", append([]string{"-c", supervise, "sh"}, command...)...), hold: hold, ended: make(chan struct{})}
	p.shell.Stdout, p.shell.Stderr = out, out
	p.shell.ExtraFiles = []*os.File{held, alive}
	p.shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no signal meant for us reaches it
	err = p.shell.Start()
	if err := errors.Join(err, alive.Close()); err != nil {
		return nil, errors.Join(err, hold.Close(), life.Close())
	}
	lines := bufio.NewReader(life)
	line, err := lines.ReadString('\n')
	if err == nil {
		p.pid, err = strconv.Atoi(strings.TrimSpace(line))
	}
	go func() {
		_, _ = io.Copy(io.Discard, lines) // returns when the command is gone
		_ = life.Close()
		_ = hold.Close() // now the shell goes, too, where it has not been killed
		_ = p.shell.Wait()
		close(p.ended)
	}()
	if err != nil {
		_ = hold.Close()
		return nil, fmt.Errorf("start %s: %w", command[0], err)
	}
	return p, nil
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// kill ends the command with SIGKILL, paused or not, and waits for its end.
func (p *process) kill() error {
	if err := p.signal(syscall.SIGKILL); err != nil {
		return err
	}
	<-p.ended
	return nil
}

func (p *process) pause() error  { return p.signal(syscall.SIGSTOP) }
func (p *process) resume() error { return p.signal(syscall.SIGCONT) }

// terminate asks the command, paused or not, to end in order. One that has ended is no error.
func (p *process) terminate() error {
	if !p.running() {
		return nil
	}
	return errors.Join(p.resume(), p.signal(syscall.SIGTERM))
}

// signal sends a signal to the command. One that has just ended is no error: who waits for its end sees it.
func (p *process) signal(s syscall.Signal) error {
	if err := syscall.Kill(p.pid, s); err != nil && p.running() && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("send %v: %w", s, err)
	}
	return nil
}
