package docker

import (
	"bytes"
	"debug/elf"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/prl-project/prl/deploy/deploytest"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

// TestLint: hadolint finds nothing, of any weight.
func TestLint(t *testing.T) {
	bin := need.Validators(t, deploytest.ValidatorsDir)
	if out, err := exec.Command(filepath.Join(bin, "hadolint"), "--failure-threshold", "style", "Dockerfile").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// stage is what the Dockerfile says from one FROM … AS name to the next.
func stage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range regexp.MustCompile(`(?m)^FROM `).Split(string(text), -1) {
		if first, _, _ := strings.Cut(s, "\n"); strings.HasSuffix(first, " AS "+name) {
			return s
		}
	}
	t.Fatalf("no stage %s", name)
	return ""
}

// TestImagesAlike: every image runs as one user that is not root, in a folder of its own, and is asked whether it is ready.
func TestImagesAlike(t *testing.T) {
	for _, name := range []string{"prl", "duckdb", "python", "torch"} {
		s := stage(t, name)
		for _, want := range []string{
			"\nUSER 65532:65532\n", "\nENTRYPOINT [\"prl-stage\"]", "CMD [\"prl-stage\", \"--ready\", \"localhost:9090\"]", "PRL__TELEMETRY=0.0.0.0:9090",
			"PRL__DIR=/runs", "\nVOLUME /runs\n", `org.opencontainers.image.version="${VERSION}"`,
		} {
			if !strings.Contains(s, want) {
				t.Errorf("%s lacks %q", name, want)
			}
		}
	}
}

// TestGoIsTheOneOfTheModule: the image that builds has at least the version that go.mod asks for.
func TestGoIsTheOneOfTheModule(t *testing.T) {
	dockerfile, err := os.ReadFile("Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	module, err := os.ReadFile(deploytest.Root + "/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	have := regexp.MustCompile(`GO_IMAGE=golang:(\d+\.\d+)\.`).FindSubmatch(dockerfile)
	want := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	if have == nil || !bytes.Equal(have[1], want[1]) {
		t.Errorf("the image has Go %q, go.mod wants %q", have, want)
	}
}

// TestBuild does by hand what the stages source and build do: what .dockerignore lets through has every file that the binary is built
// from; their command builds it, from the same files where they are, so that what other tests have compiled is not compiled again; and
// it starts where there is nothing else, as the user of the image.
func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: no build")
	}
	src, root := t.TempDir(), t.TempDir()
	context(t, src)
	if there, here := sources(t, src), sources(t, deploytest.Root); there != here {
		t.Fatalf(".dockerignore lets through other files than the binary is built from:\n%s\nnot\n%s", there, here)
	}
	command := regexp.MustCompile(`(?s)CGO_ENABLED=0 go build .*?cmd/prl-stage`).FindString(stage(t, "build"))
	if command == "" {
		t.Fatal("no build without C")
	}
	cmd := exec.Command("sh", "-euc", strings.ReplaceAll(command, "/out/", root+"/"))
	cmd.Dir = deploytest.Root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	binary := filepath.Join(root, "usr/local/bin/prl-stage")
	if runtime.GOOS != "linux" {
		t.Skip("what follows is Linux's")
	}
	static(t, binary)
	if os.Getuid() != 0 {
		t.Skip("only root can start it where there is nothing else")
	}
	for dir := root; dir != filepath.Dir(filepath.Dir(root)); dir = filepath.Dir(dir) { // another user must get there
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for args, says := range map[string]string{
		"--help": "prl-stage --stage all", "--ready localhost:1": "ask whether it is ready", "--stage scorer --help": "--instance",
	} {
		start := exec.Command("/usr/local/bin/prl-stage", strings.Fields(args)...)
		start.Env, start.Dir = []string{"PRL__DIR=/runs"}, "/"
		start.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
		if out, _ := start.CombinedOutput(); !strings.Contains(string(out), says) {
			t.Errorf("prl-stage %s says %q, want %q in it", args, out, says)
		}
	}
}

// sources are the files that the binary is built from in dir, and those that it embeds. go list fails where a package or an embedded
// file is missing.
func sources(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}} {{.GoFiles}} {{.EmbedFiles}}{{end}}", "./cmd/prl-stage")
	var stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stderr = dir, append(os.Environ(), "CGO_ENABLED=0"), &stderr
	out, err := cmd.Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("go list in %s: %v\n%s", dir, err, stderr.String())
	}
	return string(out)
}

// static holds a binary to needing no other file to start.
func static(t *testing.T, path string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if libs, err := f.ImportedLibraries(); err != nil || len(libs) > 0 {
		t.Errorf("it is linked against %v: %v", libs, err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it wants a loader")
		}
	}
}

// context copies what .dockerignore lets through: everything is left out but what ! names, and of that what a later line leaves out.
func context(t *testing.T, to string) {
	t.Helper()
	text, err := os.ReadFile(deploytest.Root + "/.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var named, not []string
	for line := range strings.Lines(string(text)) {
		switch line = strings.TrimSpace(line); {
		case strings.HasPrefix(line, "!"):
			named = append(named, line[1:])
		case strings.HasPrefix(line, "**/"):
			not = append(not, line[3:])
		case line != "*" && line != "" && line[0] != '#':
			t.Fatalf(".dockerignore: %s is not understood here", line)
		}
	}
	if len(named) < 5 {
		t.Fatalf(".dockerignore names %v", named)
	}
	for _, n := range named {
		err := filepath.WalkDir(filepath.Join(deploytest.Root, n), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			for _, pattern := range not {
				if match, _ := filepath.Match(pattern, d.Name()); match {
					if d.IsDir() {
						return filepath.SkipDir
					}
					return nil
				}
			}
			if !d.Type().IsRegular() {
				return nil
			}
			rel, err := filepath.Rel(deploytest.Root, path)
			if err != nil {
				return err
			}
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Join(to, filepath.Dir(rel)), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(to, rel), data, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}
