package child

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/logs"
)

// family starts a process that starts another, and one that leaves its group, and goes on.
func family(t *testing.T) (p *Process, pids []int) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("elsewhere what leaves the group is not found")
	}
	from, to, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	cmd := exec.Command("sh", "-c", "sleep 600 & echo $!; setsid sleep 601 & echo $!; exec sleep 602")
	cmd.Stdout = to
	p, err = Start(cmd, syscall.SIGKILL)
	if err := errors.Join(err, to.Close()); err != nil {
		t.Fatal(err)
	}
	pids = []int{p.Pid()}
	for range 2 {
		var pid int
		if _, err := fmt.Fscanln(from, &pid); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return p, pids
}

// What was started is gone when Kill returns, with all that it has started.
func TestInvariant_KillLeavesNothing(t *testing.T) {
	p, pids := family(t)
	p.Kill()
	for _, pid := range pids {
		if alive(pid) {
			t.Errorf("process %d of %d is still there", pid, pids)
		}
	}
	if p.Err() == nil || p.State().Success() {
		t.Errorf("it ended well: %v", p.State())
	}
}

// When a server is killed, what it has started ends, with all that it has started; also if somebody has killed its guard before.
func TestInvariant_NothingOutlivesTheServer(t *testing.T) {
	if what := os.Getenv("CHILD_TEST"); what != "" {
		p, pids := family(t)
		defer p.Kill()
		if what == "guard killed" {
			if err := guarded.process.Kill(); err != nil {
				t.Fatal(err)
			}
			_, _ = guarded.process.Wait() // or the other who waits has
			other, more := family(t)
			defer other.Kill()
			pids = append(pids, more...)
		}
		fmt.Println("pids", len(pids))
		for _, pid := range pids {
			fmt.Println(pid)
		}
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
	}
	for _, what := range []string{"all well", "guard killed"} {
		t.Run(what, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run", "^TestInvariant_NothingOutlivesTheServer$")
			cmd.Env = append(os.Environ(), "CHILD_TEST="+what)
			said, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			hold, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			defer hold.Close()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			var n int
			lines := bufio.NewReader(said)
			_, err = fmt.Fscanf(lines, "pids %d\n", &n)
			pids := make([]int, n)
			for i := range pids {
				_, more := fmt.Fscanln(lines, &pids[i])
				err = errors.Join(err, more)
			}
			if err := errors.Join(err, cmd.Process.Kill()); err != nil || n == 0 {
				t.Fatalf("%d processes: %v", n, err)
			}
			_ = cmd.Wait() // it was killed
			for _, pid := range pids {
				for deadline := time.Now().Add(time.Minute); alive(pid); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(deadline) {
						t.Fatalf("process %d of %d outlives the server", pid, pids)
					}
				}
			}
		})
	}
}

// A process has our variables without the settings of prl, and its own.
func TestVariables(t *testing.T) {
	t.Setenv("PRL__SECRET", "hush")
	t.Setenv("THEIRS", "yes")
	out := NewOutput(NewRecord("", "", 0), 0, nil)
	cmd := exec.Command("sh", "-c", "echo $PRL__SECRET $THEIRS $OWN")
	cmd.Stdout, cmd.Env = out, []string{"OWN=too"}
	p, err := Start(cmd, syscall.SIGKILL)
	if err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	p.Kill()
	if out.Tail() != "yes too\n" {
		t.Errorf("it has %q", out.Tail())
	}
}

// A program that is not there is an error of Start.
func TestStartFails(t *testing.T) {
	if p, err := Start(exec.Command("/no/such/program"), syscall.SIGKILL); err == nil || p != nil {
		t.Errorf("%v, %v", p, err)
	}
}

// TestWhatAnEnvironmentPrintsIsLogged prints in pieces: whole lines come into the log at level debug, with the environment's name.
func TestWhatAnEnvironmentPrintsIsLogged(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var shown bytes.Buffer
	slog.SetDefault(logs.New(&shown, logs.Options{Format: logs.Text, Level: slog.LevelInfo, EnvLevels: map[string]slog.Level{"loud": slog.LevelDebug}}))
	for _, env := range []string{"loud", "quiet", ""} {
		out := NewOutput(NewRecord("", env, 0), 0, nil)
		for _, piece := range []string{"one", " line\n\ntwo\x1b[2J", "\n" + strings.Repeat("x", 2*maxLine), "\nno end"} {
			if _, err := out.Write([]byte(piece)); err != nil {
				t.Fatal(err)
			}
		}
	}
	lines := strings.Split(strings.TrimSpace(shown.String()), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], `env=loud text="one line"`) || !strings.HasSuffix(lines[1], `text="two\x1b[2J"`) || len(lines[2]) > maxLine+200 {
		t.Errorf("logged:\n%.500s", shown.String())
	}
}
