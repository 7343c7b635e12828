// Package ui is the page of a run: whether it learns, where it is slow, and any rollout it has played. It only reads: no run
// is another one for being looked at, and whatever models and environments wrote is shown as text.
//
//	Reads   every topic but requests, from where the sink's files end (from its start where there are none); the
//	        sink's files, as far as they go back
//	Writes  nothing, and is in no consumer group
//	Key     none: as many pages as one likes
//	State   none: in memory, 64 bytes for each of the newest ui.max_rollouts rollouts, the curves, and the newest records whole
//	        until the sink has written them (ui.tail_mib)
//	On replay  what comes twice is counted once or replaces what it was
//
// Packages: series (curves), flow (lag, throughput, bottleneck) and index (rollouts) are pure; history reads files; this one
// follows topics and serves. web holds the page itself: plain files in the binary, no build step, nothing from elsewhere.
//
// # The API
//
// All answers are JSON but the runbook; an error is {"error": "what to do"}. GET only, but for /api/sql.
//
//	/api/run?points=600        the run as curves (series.View), what is loaded, and sentences on what is wrong (Notice)
//	/api/run?run=B             those of another run in the same folder, as its files tell them
//	/api/runs                  the runs in the folder
//	/api/flow                  stages, lag, throughput and the bottleneck (flow.View)
//	/api/rollouts?…            a page of rollouts (index.Query has the keys); text=… searches what was said, newest first, for
//	                           most of a second, and says how far it came; from=… goes on there
//	/api/rollouts/ID           a rollout: its trace without tokens, what became of it and why, its group, its task at other
//	                           versions. ID is the place of its trace, such as traces-3-1041, and stays
//	/api/rollouts/ID/tokens?node=2&from=0   tokens of a message: ids, text, log-probabilities, mask, advantages
//	/api/rollouts/ID/images/2/0   a picture of a message
//	/api/steps/41              the batch of a step: micro-batches, their samples and rollouts, the figures of the step
//	/api/steps/41/tokens?rank=0&index=3&sample=7&from=0   tokens of a sample as the trainer got them
//	/runbook/DiskFull          what the runbook says of a fault (deploy/prometheus), as text
//	/api/sql                   the questions; POST {"query": "…"} asks one where the binary has DuckDB (build tag duckdb)
//	/api/events                server-sent events: "flow" (flow.View) each second, "change" when there is more to see. At most 64
//	                           readers; the next is refused with 503 and asks /api/now instead, which is both at one time
package ui

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/ui/flow"
	"github.com/prl-project/prl/stages/ui/history"
)

// Name is that of the stage.
const Name = "ui"

// Options say which run is looked at.
type Options struct {
	Stages   []flow.Stage // the picture
	Envs     []string     // whose tasks are followed
	Parquet  string       // the sink's folder
	Runs     string       // the folder with the runs
	MaxSteps int64        // where the run ends
	// Live says that the brokers can be asked; else only the files are looked at.
	Live bool
	// Yield makes the page give way to the run that it is a part of: it takes another port where the one that is asked for
	// is taken, and where it fails it says so in the log and ends without an error.
	Yield bool
	// OpenGroups reads from the emitter's state how many groups and rollouts have no outcome; nil where nobody asks.
	OpenGroups func(state []byte) (groups, rollouts int, err error)
}

// UI is the stage.
type UI struct {
	rt       *pipeline.Runtime
	cfg      Config
	options  Options
	files    *history.Files
	model    *model
	hub      *hub
	words    *tokenizers
	others   *otherRuns
	listener net.Listener
	now      func() time.Time
}

// New makes the page; it listens and reads nothing yet.
func New(rt *pipeline.Runtime, cfg Config, o Options) (*UI, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	now := time.Now
	u := &UI{rt: rt, cfg: cfg, options: o, files: history.New(o.Parquet), hub: newHub(), now: now}
	u.model = newModel(cfg, o, now())
	u.words = &tokenizers{blobs: rt.Blobs}
	u.others = &otherRuns{dir: o.Runs}
	return u, u.measure()
}

// Listen opens the port and gives the address of the page. Run does it where nobody has.
func (u *UI) Listen() (url string, err error) {
	u.listener, err = net.Listen("tcp", u.cfg.Listen)
	if errors.Is(err, syscall.EADDRINUSE) && u.options.Yield {
		host, _, _ := net.SplitHostPort(u.cfg.Listen)
		u.listener, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return "", fmt.Errorf("serve the page: %w (--set ui.listen=HOST:PORT chooses another address, port 0 a free one)", err)
	}
	host, _, _ := net.SplitHostPort(u.cfg.Listen)
	_, port, _ := net.SplitHostPort(u.listener.Addr().String())
	if host == "" {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port) + "/", nil
}

// Run shows the run until ctx ends.
func (u *UI) Run(ctx context.Context) error {
	if u.listener == nil {
		url, err := u.Listen()
		if err != nil {
			return err
		}
		u.rt.Log.Info("the page", "stage", Name, "url", url)
	}
	group, ctx := errgroup.WithContext(ctx)
	srv := u.server(ctx)
	group.Go(func() error {
		if err := srv.Serve(bound(u.listener, maxConnections)); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the page: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		return srv.Close()
	})
	group.Go(func() error { return u.read(ctx) })
	group.Go(func() error { return guarded(func() error { return u.tell(ctx) }) })
	u.rt.Health.Set(Name, true)
	defer u.rt.Health.Set(Name, false)
	err := group.Wait()
	if err != nil && u.options.Yield {
		u.rt.Log.Error("the page has ended; the run goes on without it, and prl-stage --stage ui shows it", "stage", Name, "error", err)
		return nil
	}
	return err
}

// guarded makes an error of a panic: the stages of the run are in the same process.
func guarded(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("a fault of prl: %v\n%s", p, debug.Stack())
		}
	}()
	return do()
}

// parquetOf is the folder with another run's files.
func (o Options) parquetOf(run string) string { return filepath.Join(o.Runs, run, "parquet") }
