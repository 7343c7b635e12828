package export

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestDraftsOfTheDead kills exports where they leave something beside their place: the next clears it away, and the export that was
// to be replaced is there until its successor is.
func TestDraftsOfTheDead(t *testing.T) {
	w := newWorld(t)
	w.run(w.play(0, 1, "x"))
	w.sink()
	for place, left := range map[string]struct {
		names []string // without the number of the draft
		there bool     // an export, at its place
	}{
		"before-rename":   {[]string{".out.draft-", "out"}, true},
		"between-renames": {[]string{".out.draft-", ".out.draft-.old"}, false},
		"renamed":         {[]string{".out.draft-.old", "out"}, true},
	} {
		t.Run(place, func(t *testing.T) {
			dir := t.TempDir()
			out := filepath.Join(dir, "out")
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			others := []string{".out.draft-mine", ".out-2.draft-1", "out.draft-1"} // names that no draft of it has
			for _, name := range others {
				if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			beside := func() (names []string) {
				t.Helper()
				for _, name := range entries(t, dir) {
					if !slices.Contains(others, name) {
						names = append(names, strings.Map(func(r rune) rune {
							if r >= '0' && r <= '9' {
								return -1
							}
							return r
						}, name))
					}
				}
				return names
			}
			must(t, w.command(ctx, out, "", w.parquet).Run())
			killedAt(t, w.command(ctx, out, "", w.parquet, "PRL_CRASH_AT="+Name+"."+place+":1"))
			if got := beside(); !slices.Equal(got, left.names) {
				t.Fatalf("the killed export left %v, want %v", got, left.names)
			}
			must(t, clearAway(out))
			if got := beside(); !slices.Equal(got, []string{"out"}) || len(entries(t, dir)) != 1+len(others) {
				t.Errorf("beside the export there are %v", entries(t, dir))
			}
			if rows := w.rows(filepath.Join(out, "train.jsonl")); len(rows) != 1 {
				t.Errorf("the export that was there has %d rows", len(rows))
			}
		})
	}
}

// TestDraftsOfTheLiving stops an export with a draft: another to the same place leaves the draft alone, until the process is dead.
func TestDraftsOfTheLiving(t *testing.T) {
	w := newWorld(t)
	w.run(w.play(0, 1, "x"))
	w.sink()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	stopped := w.command(ctx, out, "", w.parquet, "PRL_PAUSE_AT="+Name+".before-rename:1")
	must(t, stopped.Start())
	var status syscall.WaitStatus
	if pid, err := syscall.Wait4(stopped.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || pid != stopped.Process.Pid || !status.Stopped() {
		t.Fatalf("the export did not stop: %v, %v", status, err)
	}
	must(t, w.command(ctx, out, "", w.parquet).Run())
	if got := entries(t, dir); len(got) != 2 || !strings.HasPrefix(got[0], draftPrefix(out)) {
		t.Errorf("beside the export there are %v, want the draft of the one that lives", got)
	}
	must(t, stopped.Process.Kill())
	_ = stopped.Wait() // it says that it was killed
	must(t, w.command(ctx, out, "", w.parquet).Run())
	if got := entries(t, dir); !slices.Equal(got, []string{"out"}) {
		t.Errorf("beside the export there are %v", got)
	}
}

// TestDraftIsItsOwn makes drafts while another process clears away all the time: none is taken for a dead one's.
func TestDraftIsItsOwn(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				if err := clearAway(out); err != nil {
					t.Error(err)
					return
				}
			}
		}
	}()
	for range 300 {
		dir, lock, err := newDraft(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "rows"), nil, 0o644); err != nil {
			t.Error(err)
		}
		must(t, os.RemoveAll(dir))
		must(t, lock.Close())
	}
	close(stop)
	<-done
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	must(t, err)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// killedAt runs an export that kills itself.
func killedAt(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	text, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the process was not killed: %v\n%s", err, text)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
