package python

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// isolated is a sandbox with namespaces, whose limits are small.
func isolated(t *testing.T, change func(*Config)) *sandbox {
	t.Helper()
	need.Python3(t)
	cfg := Defaults()
	cfg.Parallel, cfg.MemoryMB, cfg.FileMB, cfg.Processes, cfg.TimeoutS, cfg.OutputKB = 2, 128, 2, 8, 20, 4
	change(&cfg)
	s, err := newSandbox(cfg)
	if err != nil {
		t.Fatal(err)
	}
	need.Namespaces(t, s.namespaces)
	return s
}

// attempt runs f() of a program once and holds what is promised of every run: the folder stays empty, and every process is gone.
func attempt(t *testing.T, s *sandbox, code string) (outcome, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "prl-python-test-") // where nobody can come, too, unlike t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	o, err := s.runIn(t.Context(), dir, code, "f", []json.RawMessage{json.RawMessage(`[]`)})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || s.namespaces && len(left) > 0 {
		t.Errorf("left in the folder: %v, %v", left, err)
	}
	// The kernel ends the others of a namespace before its first process is reaped.
	if alive := processes(t, "PRL_FOLDER="+dir); len(alive) > 0 {
		t.Errorf("still there: %v", alive)
	}
	return o, string(o.returned[0])
}

// processes are those that began with an environment variable.
func processes(t *testing.T, variable string) (pids []string) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if text, err := os.ReadFile(path); err == nil && slices.Contains(strings.Split(string(text), "\x00"), variable) {
			pids = append(pids, path)
		}
	}
	return pids
}

// The check for processes that are left finds one that is.
func TestProcessesAreFound(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	cmd.Env = []string{"PRL_FOLDER=here"}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if n := len(processes(t, "PRL_FOLDER=here")); n != 1 {
		t.Errorf("%d processes are found, want 1", n)
	}
}

func TestInvariant_ForkBombIsContained(t *testing.T) {
	s := isolated(t, func(*Config) {})
	// A bomb whose processes stay, to count them.
	_, got := attempt(t, s, `
import os, time
def f():
    n = 0
    while True:
        try:
            pid = os.fork()
        except BlockingIOError:
            return n
        if pid == 0:
            time.sleep(60)
        n += 1
`)
	if got != "7" { // beside the first one, of 8
		t.Errorf("the bomb had %s processes", got)
	}
	// And one as it is written.
	o, got := attempt(t, s, "import os\ndef f():\n    while True: os.fork()\n")
	if got != "" || !strings.HasPrefix(o.errors[0], "BlockingIOError") {
		t.Errorf("%s %v", got, o.errors)
	}
}

func TestInvariant_MemoryIsBounded(t *testing.T) {
	s := isolated(t, func(*Config) {})
	o, got := attempt(t, s, `
def f():
    kept = []
    while True:
        kept.append(bytearray(1 << 20))
`)
	if got != "" || !strings.HasPrefix(o.errors[0], "MemoryError") {
		t.Errorf("%s, %v", got, o.errors)
	}
	_, got = attempt(t, s, "def f():\n    return len(bytearray(20 << 20))\n")
	if got != "20971520" {
		t.Errorf("a sixth of the memory cannot be had: %s", got)
	}
}

func TestInvariant_TimeIsBounded(t *testing.T) {
	s := isolated(t, func(c *Config) { c.TimeoutS = 0.5 })
	for name, code := range map[string]string{
		"loop":      "def f():\n    while True: pass\n",
		"sleep":     "import time\ndef f():\n    time.sleep(60)\n",
		"at import": "while True: pass\ndef f(): pass\n",
		"stubborn":  "import signal\nfor n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n    except Exception: pass\ndef f():\n    while True: pass\n",
		"catching":  "def f():\n    while True:\n        try:\n            while True: pass\n        except BaseException: pass\n",
	} {
		o, got := attempt(t, s, code)
		if got != "" || o.stopped != "time" || !strings.Contains(o.errors[0], "time limit") {
			t.Errorf("%s: %s %+v", name, got, o)
		}
	}
}

// What returned before the time was up counts.
func TestTimeLimitKeepsWhatReturned(t *testing.T) {
	s := isolated(t, func(c *Config) { c.TimeoutS = 0.5 })
	calls := []json.RawMessage{json.RawMessage(`[1]`), json.RawMessage(`[2]`), json.RawMessage(`[3]`)}
	o, err := s.run(t.Context(), "def f(n):\n    while n == 2: pass\n    return n\n", "f", calls)
	if err != nil || string(o.returned[0]) != "1" || o.returned[1] != nil || o.returned[2] != nil || o.stopped != "time" {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestInvariant_NoNetwork(t *testing.T) {
	s := isolated(t, func(*Config) {})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	came := make(chan struct{}, 1)
	go func() {
		if c, err := listener.Accept(); err == nil {
			c.Close()
			came <- struct{}{}
		}
	}()
	code := `
import errno, socket
def f():
    host, port = "` + strings.Replace(listener.Addr().String(), ":", `", `, 1) + `
    try:
        socket.create_connection((host, port), timeout=5)
    except OSError as e:
        return errno.errorcode[e.errno]
    return "connected"
`
	if _, got := attempt(t, s, code); got != `"ENETUNREACH"` {
		t.Errorf("a connection to this machine: %s", got)
	}
	// The same program connects where nothing keeps it.
	script := filepath.Join(t.TempDir(), "open.py")
	if err := os.WriteFile(script, []byte(code+"\nprint(f())\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if said, err := exec.Command(s.python, script).Output(); err != nil || strings.TrimSpace(string(said)) != "connected" {
		t.Errorf("outside: %q, %v", said, err)
	}
	select {
	case <-came:
	case <-time.After(30 * time.Second):
		t.Error("the listener has not heard of the connection from outside")
	}
}

func TestInvariant_NoFilesButItsOwn(t *testing.T) {
	s := isolated(t, func(*Config) {})
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("x"), 0o666); err != nil {
		t.Fatal(err)
	}
	_, got := attempt(t, s, `
import os
def tried(path, mode):
    try:
        open(path, mode).close()
        return "done"
    except OSError as e:
        return type(e).__name__
def f():
    return [tried("`+outside+`", "r"), tried("`+outside+`", "w"), tried("/escape", "w"), tried("/usr/escape", "w"),
            tried("`+s.prefixes[0]+`/lib/escape", "w"), tried("/etc/passwd", "r"), tried("/etc/passwd", "w"), tried("/proc/1/environ", "r"),
            tried("/dev/sda", "r"), tried("/tmp/own", "w"), tried("own", "r"), os.getcwd(), sorted(os.listdir("/tmp"))]
`)
	want := `["FileNotFoundError", "FileNotFoundError", "OSError", "OSError", "OSError", "FileNotFoundError", "OSError", "FileNotFoundError", ` +
		`"FileNotFoundError", "done", "done", "/tmp", ["own"]]`
	if got != want {
		t.Errorf("%s, want\n%s", got, want)
	}
	if text, err := os.ReadFile(outside); err != nil || string(text) != "x" {
		t.Errorf("the file outside: %q, %v", text, err)
	}
}

// The walls cannot be taken down from inside: not by the code, not by a program that it starts, not with a user namespace of its own.
func TestInvariant_NoWayOut(t *testing.T) {
	s := isolated(t, func(*Config) {})
	_, got := attempt(t, s, `
import ctypes, errno, os, subprocess, sys
program = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
print("done" if libc.mount(None, b"/usr", None, ctypes.c_ulong(32 | 4096), None) == 0 else errno.errorcode[ctypes.get_errno()])
"""
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *args):
    if getattr(libc, name)(*args) == 0:
        return "done"
    return errno.errorcode[ctypes.get_errno()]
def f():
    NEWUSER, NEWNS = 0x10000000, 0x20000
    first = [tried("mount", None, b"/usr", None, ctypes.c_ulong(32 | 4096), None), tried("umount2", b"/usr", 2), tried("chroot", b"/tmp"),
             tried("sethostname", b"x", 1), tried("setuid", 0) if os.getuid() else "EPERM"]
    first.append(subprocess.run([sys.executable, "-S", "-c", program], stdout=subprocess.PIPE).stdout.decode().strip())
    inner = tried("unshare", NEWUSER | NEWNS)
    again = [tried("mount", None, b"/usr", None, ctypes.c_ulong(32 | 4096), None), tried("umount2", b"/usr", 2)]
    return [first, inner, again]
`)
	var said []any
	if err := json.Unmarshal([]byte(got), &said); err != nil || len(said) != 3 {
		t.Fatal(got)
	}
	for _, one := range said[0].([]any) {
		if one != "EPERM" && one != "EINVAL" {
			t.Errorf("without rights: %v", said[0])
		}
	}
	for _, one := range said[2].([]any) {
		if one != "EPERM" && one != "EINVAL" {
			t.Errorf("in a namespace of its own (%v): %v", said[1], said[2])
		}
	}
}

func TestInvariant_FilesAreBounded(t *testing.T) {
	s := isolated(t, func(*Config) {})
	_, got := attempt(t, s, `
import errno
def f():
    said = []
    try:
        with open("one", "wb") as out:
            for _ in range(100):
                out.write(bytes(1 << 20))
                out.flush()
    except OSError as e:
        said.append(errno.errorcode[e.errno])
    open("one", "wb").close()
    try:
        for i in range(100):
            with open(str(i), "wb") as out:
                out.write(bytes(1 << 18))
    except OSError as e:
        said.append(errno.errorcode[e.errno])
        said.append(i < 10)
    return said
`)
	if got != `["EFBIG", "ENOSPC", true]` && got != `["ENOSPC", "ENOSPC", true]` {
		t.Errorf("%s", got)
	}
}

func TestInvariant_OutputIsBounded(t *testing.T) {
	s := isolated(t, func(*Config) {})
	o, got := attempt(t, s, `
import os, sys
def f():
    n = 0
    for _ in range(300):
        n += os.write(1, b"x" * 100000) + os.write(2, b"y" * 100000)
    return n
`)
	if got != "60000000" || len(o.printed) != 4096 {
		t.Errorf("%s were printed, %d bytes kept; want 60000000 and 4096", got, len(o.printed))
	}
	o, got = attempt(t, s, "import os\ndef f():\n    while True: os.write(3, b'x' * 100000)\n")
	if got != "" || o.stopped != "results" {
		t.Errorf("results without end: %s %+v", got, o)
	}
	o, got = attempt(t, s, "def f():\n    return 'x' * 100000\n")
	if got != "" || !strings.Contains(o.errors[0], "too long") {
		t.Errorf("a long value: %d bytes, %v", len(got), o.errors)
	}
}

// A process that leaves its group and its parent ends with the first one all the same.
func TestInvariant_OrphansEnd(t *testing.T) {
	s := isolated(t, func(*Config) {})
	_, got := attempt(t, s, `
import os, time
def f():
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(tell, b"orphan %d" % os.getpid())
            time.sleep(60)
        os._exit(0)
    os.wait()
    return os.read(told, 100).decode()
`)
	if !strings.HasPrefix(got, `"orphan `) {
		t.Errorf("there was no orphan: %s", got)
	}
}

// What a program does to the process it runs in is an answer like any other.
func TestPrograms(t *testing.T) {
	s := isolated(t, func(*Config) {})
	for name, test := range map[string]struct{ code, value, failure string }{
		"value":       {"def f(): return (1, {'a': None})", `[1, {"a": null}]`, ""},
		"none":        {"def f(): pass", "null", ""},
		"raises":      {"def f(): return [][0]", "", "IndexError: list index out of range"},
		"syntax":      {"def f( return", "", "SyntaxError"},
		"at import":   {"1/0\ndef f(): pass", "", "ZeroDivisionError"},
		"no function": {"def g(): pass", "", "KeyError: 'f'"},
		"set":         {"def f(): return {1}", "", "TypeError"},
		"nan":         {"def f(): return float('nan')", "", "ValueError"},
		"exit":        {"def f(): raise SystemExit", "", "SystemExit"},
		"hard exit":   {"import os\ndef f(): os._exit(0)", "", "the process ended before"},
		"kill":        {"import os\ndef f():\n    try: os.kill(-1, 9)\n    except ProcessLookupError: os.abort()", "", "the process ended before"},
		"recursion":   {"def f(): return f()", "", "RecursionError"},
		"closes":      {"import os\ndef f(): os.close(3); os.close(1); return 1", "", "the process ended before"},
		"forges":      {"import os\ndef f(): os.write(3, b'{\"call\":0,\"value\":7}\\n{\"call\":99,\"value\":7}\\n\\xff\\n{\"setup\":\"x\"}\\n'); return 1", "7", ""},
		"environment": {"import os\ndef f(): return sorted(os.environ)", `["HOME", "LANG", "PATH", "PRL_FOLDER", "PYTHONHASHSEED"]`, ""},
		"stdin":       {"import sys\ndef f(): return sys.stdin.read()", `""`, ""},
		"big":         {"def f(): return 2**100", "1267650600228229401496703205376", ""},
	} {
		o, got := attempt(t, s, test.code)
		if got != test.value || !strings.HasPrefix(o.errors[0], test.failure) || (test.failure == "") != (o.errors[0] == "") {
			t.Errorf("%s: %s, %q; want %s, %q", name, got, o.errors[0], test.value, test.failure)
		}
	}
}

func TestWaitsForAFreeProcess(t *testing.T) {
	s := isolated(t, func(c *Config) { c.Parallel = 1 })
	s.slots <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.run(ctx, "def f(): pass", "f", []json.RawMessage{json.RawMessage(`[]`)}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestCancelledRunIsAnError(t *testing.T) {
	s := isolated(t, func(*Config) {})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	dir := t.TempDir()
	_, err := s.runIn(ctx, dir, "def f():\n    while True: pass\n", "f", []json.RawMessage{json.RawMessage(`[]`)})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if alive := processes(t, "PRL_FOLDER="+dir); len(alive) > 0 {
		t.Errorf("still there: %v", alive)
	}
}

// Code that cannot be shut in has not run: an error of the infrastructure.
func TestFailedSetUpIsAnError(t *testing.T) {
	s := isolated(t, func(*Config) {})
	s.limits.files = -5 // no size of a file system
	_, err := s.run(t.Context(), "def f(): pass", "f", []json.RawMessage{json.RawMessage(`[]`)})
	if !errors.Is(err, errSetup) {
		t.Errorf("%v", err)
	}
}

func TestPythonIsFound(t *testing.T) {
	need.Python3(t)
	for name, want := range map[string]string{"no-such-python": "not there", "false": "ask it", "echo": "is no Python"} {
		if err := (&sandbox{}).find(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// Without namespaces no process can be started, and the other limits hold; root's server runs the code as nobody. (No Python of
// root's own can be run then.)
func TestWithoutNamespaces(t *testing.T) {
	s := isolated(t, func(*Config) {})
	s.namespaces = false
	if os.Geteuid() == 0 {
		s.python = "/usr/bin/python3"
		need.That(t, exec.Command(s.python, "-c", "").Run() == nil, "PRL_TEST_PYTHON", "no Python for nobody: "+s.python)
	}
	_, got := attempt(t, s, `
import os
def f():
    open("own", "w").close()
    try:
        os.fork()
    except BlockingIOError:
        return ["no process", os.getcwd() == os.environ["HOME"], os.getuid() != 0]
`)
	if got != `["no process", true, true]` {
		t.Errorf("a fork: %s", got)
	}
	o, _ := attempt(t, s, "def f():\n    return len(bytearray(1 << 30))\n")
	if !strings.HasPrefix(o.errors[0], "MemoryError") {
		t.Errorf("%v", o.errors)
	}
	o, _ = attempt(t, s, "def f():\n    open('own', 'wb').write(bytes(3 << 20))\n")
	if !strings.HasPrefix(o.errors[0], "OSError: [Errno 27]") {
		t.Errorf("%v", o.errors)
	}
	s.limits.time = 300 * time.Millisecond
	if o, _ = attempt(t, s, "def f():\n    while True: pass\n"); o.stopped != "time" {
		t.Errorf("%+v", o)
	}
}
