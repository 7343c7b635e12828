// Command cmd runs Apache Kafka on this machine: around a command, which finds its addresses in PRL_TEST_KAFKA_BROKERS,
// or until it gets SIGINT or SIGTERM.
//
//	go run ./deploy/kafka/cmd --nodes 3 -- go test ./pipeline/...
//	go run ./deploy/kafka/cmd --port 9092 --dir .cache/kafka
//
// Guarantee: with a command it ends with the command's exit code, and Kafka with it, however either of them ends.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/prl-project/prl/deploy/kafka"
	"github.com/prl-project/prl/deploy/kafka/kafkatest"
)

type options struct {
	kafka.Config
	optional bool
	command  []string
}

func main() {
	var o options
	flag.IntVar(&o.Nodes, "nodes", 1, "1 or 3")
	flag.IntVar(&o.Port, "port", 0, "of the first node, the others have the next ones; 0 takes free ones")
	flag.StringVar(&o.Dir, "dir", "", "data and logs, which a later start goes on with (default a temporary folder)")
	flag.BoolVar(&o.optional, "optional", false, "run the command without Kafka where "+kafkatest.BrokersVariable+" is set already, or Java or Maven are missing")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: cmd [options] [-- command arguments]")
		flag.PrintDefaults()
	}
	flag.Parse()
	o.command = flag.Args()
	// Nobody kills these nodes, but a busy machine may keep them from their heartbeats for seconds.
	o.Properties = map[string]string{"broker.session.timeout.ms": "20000"}
	code, err := run(o)
	if err != nil {
		fmt.Fprintln(os.Stderr, "kafka:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// run returns the exit code of the command.
func run(o options) (code int, err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if o.optional && len(o.command) > 0 {
		if os.Getenv(kafkatest.BrokersVariable) != "" {
			return runCommand(o.command, nil, signals)
		}
		if err := kafka.Missing(); err != nil {
			fmt.Fprintf(os.Stderr, "%v; going on without\n", err)
			return runCommand(o.command, nil, signals)
		}
	}
	end := (*kafka.Cluster).Stop
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "kafka-"); err != nil {
			return 1, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
		end = (*kafka.Cluster).Close
	}
	cluster, err := startUntil(o.Config, signals)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, end(cluster)) }()
	died := make(chan error, o.Nodes)
	for i := range o.Nodes {
		go func() {
			<-cluster.Done(i)
			died <- fmt.Errorf("node %d has ended by itself; %s", i, cluster.LastWords(i))
		}()
	}
	addrs := strings.Join(cluster.Addrs(), ",")
	if len(o.command) > 0 {
		code, err := runCommand(o.command, []string{kafkatest.BrokersVariable + "=" + addrs}, signals)
		select {
		case ended := <-died:
			err = errors.Join(err, ended)
		default:
		}
		return code, err
	}
	fmt.Printf("Apache Kafka %s answers at %s; data and logs in %s\n", kafka.Version, addrs, o.Dir)
	select {
	case <-signals:
		return 0, nil
	case err := <-died:
		return 1, err
	}
}

// startUntil starts Kafka unless a signal comes first.
func startUntil(cfg kafka.Config, signals chan os.Signal) (*kafka.Cluster, error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		select {
		case s := <-signals:
			cancel(fmt.Errorf("stopped by %v", s))
			signals <- s
		case <-ctx.Done():
		}
	}()
	cluster, err := kafka.Start(ctx, cfg)
	if err != nil && context.Cause(ctx) != nil {
		return nil, context.Cause(ctx)
	}
	return cluster, err
}

// runCommand runs command with env added, hands the signals on and returns its exit code, as a shell would.
func runCommand(command, env []string, signals <-chan os.Signal) (code int, err error) {
	cmd := exec.Command(command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), env...)
	if err := cmd.Start(); err != nil {
		return 127, err
	}
	ended := make(chan struct{})
	go func() {
		for {
			select {
			case s := <-signals:
				_ = cmd.Process.Signal(s) // it may have ended
			case <-ended:
				return
			}
		}
	}()
	err = cmd.Wait()
	close(ended)
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return 0, err
	}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		return 128 + int(s.Signal()), nil
	}
	return exit.ExitCode(), nil
}
