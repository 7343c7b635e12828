package chaos

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
)

//go:embed chaos.toml
var settings []byte

// A world is a run and all it runs on.
type world struct {
	cfg     Config
	bin     string
	toml    string
	app     *stages.App
	brokers *brokers
	proxy   *proxy
	disk    disk
	inject  *injector
	watch   *watch
	slots   map[string]*slot
	report  *Report
	infer   string         // address of the inference server
	extra   int            // instances that were added, so far
	busy    sync.WaitGroup // faults that have not ended
	mu      sync.Mutex     // over the output and extra
	began   time.Time
}

// locate names the files.
func (w *world) locate() (err error) {
	if w.cfg.Dir, err = filepath.Abs(w.cfg.Dir); err != nil {
		return fmt.Errorf("the harness's folder: %w", err)
	}
	dir := w.cfg.Dir
	w.bin, w.toml, w.disk = filepath.Join(dir, "prl-stage"), filepath.Join(dir, "chaos.toml"), newDisk(dir)
	return nil
}

// prepare builds the binary and writes the settings.
func (w *world) prepare(ctx context.Context) error {
	if err := w.locate(); err != nil {
		return err
	}
	if err := os.MkdirAll(w.cfg.Dir, 0o755); err != nil {
		return fmt.Errorf("the harness's folder: %w", err)
	}
	w.say("prl-stage is built")
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", w.bin, "github.com/prl-project/prl/cmd/prl-stage")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build prl-stage: %w\n%s", err, out)
	}
	if err := os.WriteFile(w.toml, settings, 0o644); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	return nil
}

// openBrokers starts what the run runs on.
func (w *world) openBrokers(ctx context.Context) error {
	if w.cfg.Nodes > 0 {
		w.report.Brokers = fmt.Sprintf("Apache Kafka, %d node(s)", w.cfg.Nodes)
		w.say("%s starts", w.report.Brokers)
		b, err := startKafka(ctx, w.cfg.Dir, w.cfg.Nodes)
		w.brokers = b
		return err
	}
	w.report.Brokers = "the embedded broker"
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	p, err := w.process("broker", nil, "--stage", "broker", "--set", "broker.listen="+addr)
	if err != nil {
		return err
	}
	w.brokers = &brokers{addrs: []string{addr}, single: p}
	return nil
}

// open sets the topics up and makes what watches and breaks the run.
func (w *world) open(ctx context.Context) error {
	cfg := stages.DefaultConfig()
	sets := []string{fmt.Sprintf("dir=%q", filepath.Join(w.cfg.Dir, "runs"))}
	if err := pipeline.LoadConfig(w.toml, nil, sets, cfg); err != nil {
		return err
	}
	var err error
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	if w.app, err = stages.NewApp(cfg, w.brokers.addrs, "chaos", log); err != nil {
		return err
	}
	if err := w.app.SetUp(ctx); err != nil {
		return err
	}
	if w.infer, err = freeAddr(); err != nil {
		return err
	}
	if w.proxy, err = newProxy("http://" + w.infer); err != nil {
		return err
	}
	if w.inject, err = newInjector(w.app.Runtime, envName); err != nil {
		return err
	}
	w.watch, err = newWatch(w.app.Runtime, envName, w.inject.keep)
	return err
}

func (w *world) close() {
	w.inject.cl.Close()
	w.proxy.close()
}

// start starts all slots.
func (w *world) start() error {
	for _, name := range slotNames() {
		if w.slots[name] == nil {
			w.slots[name] = newSlot(name, func(env ...string) (*process, error) { return w.stage(name, env) }, w.told)
		}
		if err := w.slots[name].run(); err != nil {
			return err
		}
	}
	return nil
}

// stage starts the process of a slot.
func (w *world) stage(slot string, env []string, more ...string) (*process, error) {
	stage := stageOf(slot)
	args := append([]string{"--stage", stage, "--instance", slot, "--brokers", strings.Join(w.brokers.addrs, ",")}, more...)
	switch stage {
	case "envserver":
		args = append(args, "--set", "envserver.model_url="+w.proxy.url)
	case "inference":
		args = append(args, "--set", "inference.listen="+w.infer)
	}
	return w.process(slot, env, args...)
}

// process starts prl-stage.
func (w *world) process(name string, env []string, args ...string) (*process, error) {
	args = append(args, "--config", w.toml, "--telemetry", "", "--set", "dir="+strconv.Quote(filepath.Join(w.cfg.Dir, "runs")))
	return startProcess(filepath.Join(w.logs(), name+".log"), append(env, w.disk.env()), w.bin, args...)
}

func (w *world) logs() string { return filepath.Join(w.cfg.Dir, "logs") }

// told hears of every end of a process.
func (w *world) told(slot string, p *process) {
	e := p.end
	switch {
	case e.killed:
		w.report.killed()
		return
	case p.asked() && (e.code == 0 || e.early || e.fenced()):
		return
	case e.code == 0 && stageOf(slot) == "trainer":
		return // the final version is out
	}
	w.say("%s %s", slot, firstLine(e.String()))
	w.report.ended(slot, e)
}

// end stops all slots in order, side by side; the sinks last, so that they have read what the others wrote.
func (w *world) end() {
	w.busy.Wait()
	w.stopSlots(func(stage string) bool { return stage != "sink" })
	w.stopSlots(func(stage string) bool { return stage == "sink" })
}

func (w *world) stopSlots(which func(stage string) bool) {
	var all sync.WaitGroup
	for name, s := range w.slots {
		if which(stageOf(name)) {
			all.Go(func() {
				if err := s.end(); err != nil {
					w.report.violate("%v", err)
				}
			})
		}
	}
	all.Wait()
}

// await waits until ok, a deadline, or the end of ctx. It says which.
func (w *world) await(ctx context.Context, deadline time.Duration, ok func() bool) bool {
	timeout := time.After(deadline)
	for !ok() {
		select {
		case <-ctx.Done():
			return false
		case <-timeout:
			return false
		case <-time.After(50 * time.Millisecond):
		}
	}
	return true
}

func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fmt.Fprintf(w.cfg.Out, "%7.1fs  %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

// freeAddr is an address that nobody listens on.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", fmt.Errorf("find a free port: %w", err)
	}
	return l.Addr().String(), l.Close()
}
