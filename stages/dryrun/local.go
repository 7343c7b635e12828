package dryrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/ui"
)

// local are the checks of this machine.
func (r *Run) local() []check {
	list := []check{{"settings", limit, r.seeSettings}}
	if r.Name != "setup" {
		list = append(list, check{"folder", limit, r.seeFolder}, check{"disk", limit, r.seeDisk}, check{"blobs", limit, r.seeBlobs})
	}
	if r.has("sink") {
		list = append(list, check{"parquet", limit, r.seeParquet})
	}
	if r.Embedded && len(r.Stages) > 1 || r.Name == "broker" { // what only looks at a run may do so beside it
		list = append(list, check{"broker's data", limit, r.seeBrokerData})
	}
	for _, p := range r.ports() {
		list = append(list, check{"port", limit, p.see})
	}
	return list
}

func (r *Run) seeSettings(_ context.Context, res *Result) {
	begun, err := r.Config.Begun()
	if r.has("trainer") {
		err = errors.Join(err, r.Config.Trainer.ValidateFor(r.Config.Run, r.Config.Model))
	}
	switch {
	case err != nil:
		res.fail("%w", err)
	case begun:
		res.ok("valid, and [run] is as run %s began with it", r.Config.Run.Name)
	default:
		res.ok("valid; run %s has not begun in %s", r.Config.Run.Name, r.Config.Dir)
	}
}

// above is the folder itself, or the nearest above it that is there.
func above(dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for {
		info, err := os.Stat(dir)
		switch {
		case err == nil && !info.IsDir():
			return "", fmt.Errorf("%s is a file, a folder is needed", dir)
		case err == nil:
			return dir, nil
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR) || dir == filepath.Dir(dir):
			return "", err
		}
		dir = filepath.Dir(dir)
	}
}

const (
	mayWrite = 2
	mayEnter = 1
)

// writable says whether this user may write into a folder, or make it.
func writable(dir string) (there bool, err error) {
	at, err := above(dir)
	if err != nil {
		return false, err
	}
	if err := syscall.Access(at, mayWrite|mayEnter); err != nil {
		return false, fmt.Errorf("this user may not write into %s: %w", at, err)
	}
	dir, err = filepath.Abs(dir)
	return at == dir, err
}

func (r *Run) seeFolder(_ context.Context, res *Result) {
	switch there, err := writable(r.Config.RunDir()); {
	case err != nil:
		res.fail("the run's folder %s: %w (the setting dir names another)", r.Config.RunDir(), err)
	case !there:
		res.ok("%s would be made", r.Config.RunDir())
	default:
		res.ok("%s is there", r.Config.RunDir())
	}
}

func (r *Run) seeDisk(_ context.Context, res *Result) {
	at, err := above(r.Config.RunDir())
	var s syscall.Statfs_t
	if err == nil {
		err = syscall.Statfs(at, &s)
	}
	if err != nil {
		res.fail("how much is free for %s: %w", r.Config.RunDir(), err)
		return
	}
	free := int64(s.Bavail) * int64(s.Bsize)
	least := cmp.Or(r.LeastFree, 1<<30)
	if free < least {
		res.fail("%d MiB are free at %s: weights, Parquet files and the embedded broker's data need at least %d MiB; make room, or set dir to another disk", free>>20, at, least>>20)
		return
	}
	res.ok("%.1f GiB are free at %s", float64(free)/(1<<30), at)
}

// seeBlobs writes a probe where the weights and large tensors go, reads it and takes it away.
func (r *Run) seeBlobs(_ context.Context, res *Result) {
	dir := filepath.Join(r.Config.RunDir(), "blobs")
	there, err := writable(dir)
	if err == nil && !there {
		res.skip("%s would be made", dir)
		return
	}
	if err == nil {
		err = probe(dir)
	}
	if err != nil {
		res.fail("the blob store: %w", err)
		return
	}
	res.ok("%s: a probe was written, linked, read and deleted", dir)
}

// probe writes a file into a folder, links it, as files are published, reads it and removes both.
func probe(dir string) (err error) {
	const text = "a probe of prl-stage --dry-run"
	f, err := os.CreateTemp(dir, ".dry-run-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.Remove(f.Name())) }()
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	link := f.Name() + "-link"
	if err := os.Link(f.Name(), link); err != nil {
		return fmt.Errorf("%w: the disk must know hard links, by which files are published whole", err)
	}
	defer func() { err = errors.Join(err, os.Remove(link)) }()
	got, err := os.ReadFile(link)
	if err == nil && string(got) != text {
		err = fmt.Errorf("%s: what was read is not what was written", dir)
	}
	return err
}

func (r *Run) seeParquet(_ context.Context, res *Result) {
	dir := r.Config.Sink.Dir
	if dir == "" {
		dir = filepath.Join(r.Config.RunDir(), "parquet")
	}
	there, err := writable(dir)
	if err == nil && there {
		err = probe(dir)
	}
	switch {
	case err != nil:
		res.fail("sink.dir: %w", err)
	case !there:
		res.ok("%s would be made", dir)
	default:
		res.ok("%s: a probe was written, linked, read and deleted", dir)
	}
}

// seeBrokerData asks whether the embedded broker's data are another process's at the moment.
func (r *Run) seeBrokerData(_ context.Context, res *Result) {
	addr, err := broker.Running(r.BrokerDir)
	switch {
	case err != nil:
		res.fail("%w", err)
	case addr != "":
		res.fail("run %s goes on in another process, whose broker is at %s: end that one first, or choose another --run", r.Config.Run.Name, addr)
	default:
		res.ok("no other process serves %s", r.BrokerDir)
	}
}

// A port is an address that would be listened at.
type port struct {
	key, addr string
	yields    bool // where it is taken, another one is
}

func (r *Run) ports() (list []port) {
	add := func(key, addr string, yields bool) {
		if addr != "" {
			list = append(list, port{key, addr, yields})
		}
	}
	c := r.Config
	if len(r.Stages) > 0 {
		add("telemetry", c.Telemetry, false)
	}
	if r.has("inference") {
		add("inference.listen", c.Inference.Listen, false)
	}
	if r.has(ui.Name) {
		add("ui.listen", c.UI.Listen, len(r.Stages) > 1)
	}
	if r.Name == "broker" {
		add("broker.listen", c.Broker.Listen, false)
	}
	return list
}

func (p port) see(ctx context.Context, res *Result) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
	switch {
	case err != nil && p.yields:
		res.ok("%s = %q is taken; another port would be", p.key, p.addr)
	case err != nil:
		res.fail("%s = %q: %w: does the stage run already? Set another address, or port 0 for any that is free", p.key, p.addr, err)
	default:
		if err := l.Close(); err != nil {
			res.fail("%s = %q: %w", p.key, p.addr, err)
			return
		}
		res.ok("%s = %q is free", p.key, p.addr)
	}
}

// instance is the name the process would have as a stage.
func (r *Run) instance(stage string) string {
	switch {
	case r.Instance != "":
		return r.Instance
	case len(r.Stages) > 1:
		return "all"
	}
	return pipeline.NextInstance(filepath.Join(r.Config.RunDir(), "locks"), stage)
}
