package openenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

const (
	// stopTime is how long a server may take to end by itself.
	stopTime = 5 * time.Second
	// Pauses before a server is started again that has ended; one that has run for longer than the longest has a short one.
	firstRestart   = 200 * time.Millisecond
	longestRestart = 10 * time.Second
	logBytes       = 16 << 20
)

// keeper runs a server, starts it again when it has ended, and ends it with all that it has started.
type keeper struct {
	command []string
	record  *child.Record
	out     *child.Output
	ctx     context.Context // ends when the server is to end
	quit    context.CancelFunc
	done    chan struct{}
	broken  chan struct{} // closed when the server has ended for the first time
	why     error         // once broken
}

// keep starts the server of a command at an address, where nobody may answer yet. What it prints goes to the log.
func keep(command []string, at *url.URL, record *child.Record) (*keeper, error) {
	host := at.Host
	if at.Port() == "" {
		host = net.JoinHostPort(at.Hostname(), at.Scheme)
	}
	if c, err := net.DialTimeout("tcp", host, time.Second); err == nil {
		return nil, errors.Join(
			fmt.Errorf("somebody answers at %s already: leave command out, or take another port there and in the source", at), c.Close())
	}
	k := &keeper{
		command: command, record: record, out: child.NewOutput(record, 0, nil),
		done: make(chan struct{}), broken: make(chan struct{}),
	}
	k.ctx, k.quit = context.WithCancel(context.Background())
	p, err := k.start()
	if err != nil {
		k.quit()
		return nil, errors.Join(err, record.Close())
	}
	go k.run(p)
	return k, nil
}

func (k *keeper) start() (*child.Process, error) {
	cmd := exec.Command(k.command[0], k.command[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Env = k.out, k.out, []string{"PYTHONUNBUFFERED=1"}
	p, err := child.Start(cmd, syscall.SIGTERM)
	if err != nil {
		return nil, fmt.Errorf("command: %w", err)
	}
	k.out.Note("--- process %d", p.Pid())
	return p, nil
}

func (k *keeper) run(p *child.Process) {
	defer close(k.done)
	pause, begun := firstRestart, time.Now()
	for {
		if p != nil {
			select {
			case <-p.Ended():
				p.Kill() // what it has left behind
				k.note(fmt.Errorf("process %d: %v", p.Pid(), p.State()))
			case <-k.ctx.Done():
				p.End(stopTime)
				k.out.Note("--- process %d: %v", p.Pid(), p.State())
				return
			}
		}
		if time.Since(begun) > longestRestart {
			pause = firstRestart
		}
		select {
		case <-time.After(pause):
		case <-k.ctx.Done():
			return
		}
		pause, begun = min(2*pause, longestRestart), time.Now()
		var err error
		if p, err = k.start(); err != nil {
			k.note(err)
		}
	}
}

// note keeps why the server is not there; the first time with what it has printed.
func (k *keeper) note(why error) {
	select {
	case <-k.broken:
	default:
		k.why = fmt.Errorf("the server of command has ended: %w\n%s", why, k.out.Tail())
		close(k.broken)
	}
	k.out.Note("--- %v", why)
}

// close ends the server; nil is none.
func (k *keeper) close() error {
	if k == nil {
		return nil
	}
	k.quit()
	<-k.done
	return k.record.Close()
}
