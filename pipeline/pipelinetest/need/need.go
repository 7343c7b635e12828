// Package need skips tests whose means this machine lacks, and fails them where a variable says that it has them, as
// .ci/run does: there no test is passed over in silence.
package need

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// That skips the test with why unless something is there; where the variable is "required" it fails.
func That(t testing.TB, there bool, variable, why string) {
	t.Helper()
	switch {
	case there:
	case os.Getenv(variable) == "required":
		t.Fatalf("%s (%s=required)", why, variable)
	default:
		t.Skip(why)
	}
}

// python says whether tests that need Python must run.
const python = "PRL_TEST_PYTHON"

// Python3 wants a python3 on PATH.
func Python3(t testing.TB) {
	t.Helper()
	_, err := exec.LookPath("python3")
	That(t, err == nil, python, "no python3 on PATH")
}

// Namespaces wants processes to be given namespaces of their own.
func Namespaces(t testing.TB, given bool) {
	t.Helper()
	That(t, given, python, "this system gives us no namespaces")
}

// Clients wants the Python clients in dir, where `make python` puts them, and a run that is not -short.
func Clients(t testing.TB, dir string) {
	t.Helper()
	installed(t, dir, python, "no Python clients: `make python` installs them")
}

// Torch wants PyTorch and transformers in dir, where `make torch` puts them, and a run that is not -short.
func Torch(t testing.TB, dir string) {
	t.Helper()
	installed(t, dir, "PRL_TEST_TORCH", "no PyTorch: `make torch` installs it")
}

// OpenEnv wants OpenEnv in dir, where `make openenv` puts it, and a run that is not -short.
func OpenEnv(t testing.TB, dir string) {
	t.Helper()
	installed(t, dir, "PRL_TEST_OPENENV", "no OpenEnv: `make openenv` installs it")
}

// Verifiers wants a version of the Python package verifiers in dir, where `make verifiers` puts them, and a run that is not -short.
func Verifiers(t testing.TB, dir string) {
	t.Helper()
	installed(t, dir, "PRL_TEST_VERIFIERS", "no verifiers: `make verifiers` installs it")
}

func installed(t testing.TB, dir, variable, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no Python")
	}
	_, err := os.Stat(filepath.Join(dir, "installed"))
	That(t, err == nil, variable, why)
}

// Chromium wants a Chromium, which `make chromium` installs, and a run that is not -short. It gives its path.
func Chromium(t testing.TB) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no browser")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	That(t, false, "PRL_TEST_CHROMIUM", "no Chromium on PATH: `make chromium` installs it")
	return ""
}

// Validators wants what `make validators` puts into dir (.cache/validators), and a run that is not -short. It gives the folder of
// the programs.
func Validators(t testing.TB, dir string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: no validators")
	}
	bin, err := filepath.Abs(filepath.Join(dir, "bin"))
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, "installed"))
	}
	That(t, err == nil, "PRL_TEST_VALIDATORS", "no promtool, helm and so on: `make validators` installs them")
	return bin
}
