// Package deploytest holds what the files below deploy start prl with to the binary itself.
package deploytest

import (
	"context"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// Root is the repository, seen from a package two folders below it.
const Root = "../.."

// ValidatorsDir is where `make validators` puts them, seen from there.
const ValidatorsDir = Root + "/.cache/validators"

var build = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "prl-deploy")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "prl-stage")
	if out, err := exec.Command("go", "build", "-o", path, Root+"/cmd/prl-stage").CombinedOutput(); err != nil {
		return "", errors.Join(err, errors.New(string(out)), os.RemoveAll(dir))
	}
	return path, nil
})

// Main runs the tests of a package and removes the binary that they have built.
func Main(m *testing.M) {
	code := m.Run()
	if path, err := build(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// Accepts starts prl-stage with args and variables as a --dry-run without a broker: flags, settings and configuration must be right,
// and all that may fail is what there is none of.
func Accepts(t *testing.T, args []string, env map[string]string) (string, bool) {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, append(slices.Clone(args), "--brokers", "localhost:1", "--dry-run")...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH")}
	for _, name := range slices.Sorted(maps.Keys(env)) {
		cmd.Env = append(cmd.Env, name+"="+env[name])
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	// Wrong flags and settings end it before there is anything to check.
	return string(out), err == nil || strings.Contains(string(out), " checks failed")
}

// Reason is what a program that failed has said.
func Reason(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.Error() + ": " + string(exit.Stderr)
	}
	return err.Error()
}
