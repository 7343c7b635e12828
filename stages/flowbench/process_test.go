package flowbench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/env"
)

// processVariable says what a process of a stage is to be.
const processVariable = "PRL_TEST_STAGE"

// A spec is what a process has to know: a world's settings, with a shape that is one of those there are, or those of an old run.
type spec struct {
	Stage, Instance, Run, Dir, Shape, Share string
	Permits                                 int
	Brokers                                 []string
	Sets                                    []string // of an old run
	Tasks                                   int64    // that it reads before it is ready
}

func (w *scaled) spec(instance string) spec {
	return spec{Stage: w.stage, Instance: instance, Run: w.rt.Run.Name, Dir: w.app.Config.Dir, Shape: w.name, Permits: w.app.Config.Emitter.Permits, Brokers: w.rt.Brokers}
}

// TestMain turns the test binary into a process of one stage where processVariable says so.
func TestMain(m *testing.M) {
	if text := os.Getenv(processVariable); text != "" {
		if err := beProcess(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// beProcess runs a stage until the input ends. It says when the stage is ready, and when it has ended by itself, and answers each line
// with the seconds of CPU that it has taken.
func beProcess(text string) error {
	var what spec
	if err := json.Unmarshal([]byte(text), &what); err != nil {
		return err
	}
	fmt.Println("began")
	cfg, err := what.config()
	if err != nil {
		return err
	}
	app, err := stages.NewApp(cfg, what.Brokers, what.Instance, slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		return err
	}
	defer app.Close()
	var count fetched
	app.Runtime.Options = []kgo.Opt{kgo.WithHooks(&count)}
	r, ready, err := what.runner(app)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	for !app.Runtime.Health.Ready(ready) || count.tasks.Load() < what.Tasks {
		select {
		case err := <-done:
			return fmt.Errorf("the %s ended before it was ready: %w", what.Stage, err)
		case <-time.After(2 * time.Millisecond):
		}
	}
	fmt.Println("ready")
	lines := make(chan string)
	go func() {
		defer close(lines)
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			lines <- in.Text()
		}
	}()
	for ended := done; ; {
		select {
		case _, more := <-lines:
			if !more {
				cancel()
				return <-done
			}
			fmt.Println(cpuSeconds(), count.records.Load(), count.bytes.Load())
		case err := <-ended:
			done <- err
			ended = nil
			fmt.Println("ended")
		}
	}
}

func (what spec) config() (*stages.Config, error) {
	if what.Sets != nil {
		return oldConfig(what.Sets)
	}
	cfg := settings(what.shape(), what.Dir, what.Run, what.Permits)
	cfg.Sink.Share, cfg.Sink.MaxBytes, cfg.Sink.MaxAge = what.Share, 16<<20, pipeline.Duration(500*time.Millisecond)
	return cfg, nil
}

func (what spec) shape() shape {
	if what.Shape == long.name {
		return long
	}
	return usual
}

// runner is a stage as the binary makes it, but for the environment server of a world, which plays the drill. ready is the name of its
// health.
func (what spec) runner(app *stages.App) (r stages.Runner, ready string, err error) {
	app.Serve = []string{drillName}
	if what.Sets != nil {
		app.Serve = []string{"catch"}
	} else if what.Stage == "envserver" {
		s := what.shape()
		played := map[string]env.Environment{drillName: &drill{s, nil}}
		r, err = envserver.New(app.Runtime.For("envserver"), app.Config.EnvServer, played, parrot{s}, nil)
		return r, "envserver." + drillName, err
	}
	row, err := stages.Find(what.Stage)
	if err != nil {
		return nil, "", err
	}
	r, err = app.Make(row)
	return r, healthName(what.Stage), err
}

// cpuSeconds is what this process has taken.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}

// A process is one of those that do a stage's work.
type process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	done  chan struct{}
	log   strings.Builder // complete once done
}

// startProcess starts a process. It ends with the benchmark, and when this process does.
func startProcess(b *testing.B, what spec) *process {
	b.Helper()
	text, err := json.Marshal(what)
	if err != nil {
		b.Fatal(err)
	}
	p := &process{cmd: exec.Command(os.Args[0]), lines: make(chan string, 16), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), processVariable+"="+string(text))
	p.cmd.Stderr = &p.log
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		b.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		b.Fatal(err)
	}
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			p.lines <- lines.Text()
		}
		_ = p.cmd.Wait() // how it ended is in ProcessState
		close(p.done)
	}()
	b.Cleanup(func() { _ = p.cmd.Process.Kill(); <-p.done })
	return p
}

// says is the next line of the process.
func (p *process) says(b *testing.B) string {
	b.Helper()
	select {
	case line := <-p.lines:
		return line
	case <-p.done:
		b.Fatalf("the process ended: %v\n%s", p.cmd.ProcessState, p.log.String())
	case <-time.After(deadline):
		b.Fatal("the process says nothing")
	}
	return ""
}

func (p *process) expect(b *testing.B, line string) {
	b.Helper()
	if said := p.says(b); said != line {
		b.Fatalf("the process says %q, not %q", said, line)
	}
}

// A usage is what a process has taken: seconds of CPU, and records with so many bytes.
type usage struct {
	seconds        float64
	records, bytes int64
}

func (p *process) usage(b *testing.B) (u usage) {
	b.Helper()
	if _, err := fmt.Fprintln(p.in, "usage"); err != nil {
		b.Fatal(err)
	}
	said := p.says(b)
	if _, err := fmt.Sscan(said, &u.seconds, &u.records, &u.bytes); err != nil {
		b.Fatalf("%q: %v", said, err)
	}
	return u
}

// kill ends the process as a machine that fails does.
func (p *process) kill(b *testing.B) {
	b.Helper()
	if err := p.cmd.Process.Kill(); err != nil {
		b.Fatal(err)
	}
	<-p.done
	if status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		b.Fatalf("the process was to be killed, and ended with %v\n%s", p.cmd.ProcessState, p.log.String())
	}
}

// stop ends the process in order.
func (p *process) stop(b *testing.B) {
	b.Helper()
	if err := p.in.Close(); err != nil {
		b.Fatal(err)
	}
	select {
	case <-p.done:
	case <-time.After(deadline):
		b.Fatal("the process does not end")
	}
	if !p.cmd.ProcessState.Success() {
		b.Fatalf("the process ended with %v\n%s", p.cmd.ProcessState, p.log.String())
	}
}
