// Package broker serves a Kafka-compatible broker from the binary itself, for a laptop and for tests.
//
// Guarantee: what it acknowledged is there after it was stopped in order, and it is stopped in order however the process
// that started it died. A kill of the broker itself, or a power cut, can lose or tear the last transactions; that is
// what Kafka is for.
//
// Reads and writes: its data folder, which it locks; a second broker waits for the lock.
package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// lockDeadline bounds the wait for a predecessor that still writes its data.
const lockDeadline = 30 * time.Second

// Config is the section [broker].
type Config struct {
	// Listen is the address that is served; port 0 takes a free one.
	Listen string `toml:"listen"`
}

// DefaultConfig serves Kafka's usual port on this machine only.
func DefaultConfig() Config { return Config{Listen: "localhost:9092"} }

// Validate checks the section.
func (c Config) Validate() error {
	host, _, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("broker.listen = %q: host:port", c.Listen)
	}
	if host != "localhost" && !net.ParseIP(host).IsLoopback() {
		return fmt.Errorf("broker.listen = %q: the embedded broker has no access control and serves this machine only: localhost or a loopback address", c.Listen)
	}
	return nil
}

// Serve runs a broker on dir until ctx ends. It calls ready with its address when it answers.
func Serve(ctx context.Context, dir string, cfg Config, log *slog.Logger, ready func(addr string)) error {
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return err
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return fmt.Errorf("broker.listen = %q: %w", cfg.Listen, err)
	}
	if host == "localhost" {
		host = "127.0.0.1"
	}
	cluster, err := kfake.NewCluster(
		kfake.NumBrokers(1), kfake.Ports(number), kfake.DataDir(filepath.Join(dir, "log")),
		kfake.ListenFn(func(network, addr string) (net.Listener, error) {
			_, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			return net.Listen(network, net.JoinHostPort(host, port))
		}),
		kfake.WithLogger(kfake.BasicLogger(os.Stderr, kfake.LogLevelError)),
	)
	if err != nil {
		return fmt.Errorf("serve a broker on %s from %s: %w", cfg.Listen, dir, err)
	}
	addr := cluster.ListenAddrs()[0]
	log.Info("broker serves", "addr", addr, "data", dir)
	if err := tell(dir, addr); err != nil {
		cluster.Close()
		return err
	}
	ready(addr)
	<-ctx.Done()
	err = tell(dir, "")
	cluster.Close()
	log.Info("broker stopped", "data", dir)
	return err
}

// lock takes the data folder for this process alone; it waits for one that is still closing.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("make the broker's data folder: %w", err)
	}
	// The lock stands beside the folder, so that who deletes the folder (--fresh) does not delete the lock it holds.
	path := dir + ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the broker's data: %w", err)
	}
	deadline := time.Now().Add(lockDeadline)
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			if err := f.Truncate(0); err != nil { // the address of a predecessor
				return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
			}
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("another broker has held %s for %v: stop that run first, or choose another run.name", path, lockDeadline), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Remove deletes what is in a run's folder runDir, the data of its broker in dir included, once no broker holds it. The
// lock stays.
func Remove(ctx context.Context, dir, runDir string) error {
	entries, err := os.ReadDir(runDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the earlier run: %w", err)
	}
	unlock, err := lock(ctx, dir)
	if err != nil {
		return err
	}
	defer unlock()
	for _, e := range entries {
		if path := filepath.Join(runDir, e.Name()); path != dir+".lock" {
			if err := os.RemoveAll(path); err != nil {
				return fmt.Errorf("remove the earlier run: %w", err)
			}
		}
	}
	return nil
}
