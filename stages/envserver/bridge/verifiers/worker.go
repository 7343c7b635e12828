package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

// worker is a server that plays rollouts: a process of ours, or a connection to one of somebody else's.
type worker struct {
	c    *client
	p    *process // nil for somebody else's
	quit chan struct{}
	dead chan struct{} // closed when it has ended with all its children
	why  error         // once dead

	active int       // rollouts; the pool's
	had    int       // of them since it started; the pool's
	idle   time.Time // since when it has had none; the pool's
}

// foreman starts workers.
type foreman struct {
	cfg    Config
	id     string
	record *child.Record
	folder string // of the sockets
	count  atomic.Int64
}

// about is what a worker says of the environment.
type about struct {
	wire    *wire
	version string
	rows    map[string][]json.RawMessage // by split
	group   bool
}

// hire starts a worker, or connects to one; within start_s, unless ctx ends. With rows it says of the environment what is to be
// known; what nobody says there (wire 0.2.1 aside) is for [foreman.survey].
func (f *foreman) hire(ctx context.Context, rows bool) (*worker, about, error) {
	ctx, cancel := context.WithTimeout(ctx, seconds(f.cfg.StartS))
	defer cancel()
	if f.cfg.Address != "" {
		return f.join(ctx)
	}
	address := "ipc://" + filepath.Join(f.folder, fmt.Sprint(f.count.Add(1)))
	p, said, err := f.launch(ctx, "serve", address, rows)
	if err != nil {
		return nil, said, err
	}
	conn, err := dial(ctx, address, f.limit())
	if err != nil {
		p.stop()
		<-p.dead
		return nil, said, p.failure(err)
	}
	w := &worker{c: newClient(conn, said.wire, f.limit(), seconds(f.cfg.HealthS)), p: p, quit: make(chan struct{}), dead: make(chan struct{})}
	go w.watch()
	return w, said, nil
}

// join connects to the server at the configured address.
func (f *foreman) join(ctx context.Context) (*worker, about, error) {
	conn, err := dial(ctx, f.cfg.Address, f.limit())
	if err != nil {
		return nil, about{}, err
	}
	w := findWire(f.cfg.Wire)
	if w == nil {
		if w, err = probe(ctx, conn); err != nil {
			return nil, about{}, errors.Join(fmt.Errorf("%s: %w", f.cfg.Address, err), conn.Close())
		}
	}
	s := &worker{c: newClient(conn, w, f.limit(), seconds(f.cfg.HealthS)), quit: make(chan struct{}), dead: make(chan struct{})}
	go s.watch()
	return s, about{wire: w}, nil
}

// survey starts a process that says of the environment what is to be known, and ends.
func (f *foreman) survey(ctx context.Context, w *wire) (about, error) {
	ctx, cancel := context.WithTimeout(ctx, seconds(f.cfg.StartS))
	defer cancel()
	p, said, err := f.launch(ctx, "tasks", "", true, w.name)
	if err == nil {
		p.stop()
		<-p.dead
	}
	return said, err
}

// launch starts a process and reads what it says until it is ready.
func (f *foreman) launch(ctx context.Context, op, address string, rows bool, wire ...string) (*process, about, error) {
	o := order{
		Op: op, ID: f.id, Args: f.cfg.Args, EvalArgs: f.cfg.EvalArgs, Path: f.cfg.Path, Wire: f.cfg.Wire, Address: address, Rows: rows, Tasks: f.cfg.Tasks,
	}
	if len(wire) > 0 {
		o.Wire = wire[0]
	}
	p, err := start(f.cfg.Python, o, f.record)
	if err != nil {
		return nil, about{}, err
	}
	said, err := f.hear(ctx, p)
	if err != nil {
		p.stop()
		<-p.dead
		return nil, said, err
	}
	return p, said, nil
}

func (f *foreman) hear(ctx context.Context, p *process) (about, error) {
	first, err := p.next(ctx)
	if err != nil {
		return about{}, err
	}
	said := about{wire: findWire(first.Wire), version: first.Version, group: first.Group, rows: map[string][]json.RawMessage{}}
	if said.wire == nil {
		return said, p.failure(fmt.Errorf("it said wire %q", first.Wire))
	}
	for {
		l, err := p.next(ctx)
		switch {
		case err != nil:
			return said, err
		case l.Ready:
			return said, nil
		case l.Split == nil || len(l.Task) == 0:
			return said, p.failure(errors.New("it said a line that is no task"))
		}
		said.rows[*l.Split] = append(said.rows[*l.Split], l.Task)
	}
}

func (f *foreman) limit() int64 { return int64(f.cfg.ReplyMB) << 20 }

func (f *foreman) close() error {
	if f.folder == "" {
		return nil
	}
	return os.RemoveAll(f.folder)
}

// watch ends the worker when one half of it has ended, or when it is to end.
func (w *worker) watch() {
	var processDead <-chan struct{}
	if w.p != nil {
		processDead = w.p.dead
	}
	select {
	case <-w.quit:
		w.c.end(errClosed)
	case <-processDead:
		w.c.end(errors.New("the process ended"))
	case <-w.c.ended:
	}
	w.c.close()
	w.why = w.c.why
	if w.p != nil {
		if errors.Is(w.why, errHangs) {
			w.p.dump()
		}
		w.p.stop()
		<-w.p.dead
		if !errors.Is(w.why, errClosed) {
			w.why = w.p.failure(fmt.Errorf("%w (%v)", w.why, w.p.state))
		}
	}
	close(w.dead)
}

// alive says that it takes rollouts.
func (w *worker) alive() bool {
	select {
	case <-w.c.ended:
		return false
	default:
		return true
	}
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
