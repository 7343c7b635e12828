package kafka

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed pom.xml
var pom []byte

// minJava is what Kafka's brokers need.
const minJava = 17

// A distribution is Kafka's jars, and an archive of their classes that halves the time a start takes.
type distribution struct {
	jars    []string // absolute
	archive string   // empty where it is not built yet
}

// java is the command line of a virtual machine up to the name of the class.
func (d distribution) java(options ...string) []string {
	command := append([]string{"java"}, options...)
	if d.archive != "" {
		command = append(command, "-XX:SharedArchiveFile="+d.archive, "-Xshare:auto")
	}
	return append(command,
		"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
		"-Dorg.slf4j.simpleLogger.showDateTime=true",
		"-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
		"-cp", strings.Join(d.jars, string(os.PathListSeparator)))
}

// Missing says why Kafka cannot be started here, or nil: Java is wanted always, Maven until the jars are in the cache.
func Missing() error {
	if err := javaMissing(); err != nil {
		return err
	}
	dir, err := cacheDir()
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, "lib")); err == nil {
		return nil
	}
	if _, err := exec.LookPath("mvn"); err != nil {
		return fmt.Errorf("no Maven, which fetches Apache Kafka: %w", err)
	}
	return nil
}

var javaMissing = sync.OnceValue(func() error {
	said, err := exec.Command("java", "-version").CombinedOutput()
	if err != nil {
		return fmt.Errorf("no Java %d or newer, which Apache Kafka needs: %w", minJava, err)
	}
	return checkJava(said)
})

var javaVersion = regexp.MustCompile(`version "(\d+)`)

// checkJava reads what java -version said.
func checkJava(said []byte) error {
	m := javaVersion.FindSubmatch(said)
	if m == nil {
		return fmt.Errorf("no Java %d or newer, which Apache Kafka needs; java -version says: %s", minJava, bytes.TrimSpace(said))
	}
	if v, err := strconv.Atoi(string(m[1])); err != nil || v < minJava {
		return fmt.Errorf("no Java %d or newer, which Apache Kafka needs; this is %s", minJava, m[1])
	}
	return nil
}

// cacheDir is where the jars are kept: .cache of the repository that the working directory is in, else of the user.
func cacheDir() (string, error) {
	name := "kafka-" + Version
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, ".cache", name), nil
		}
	}
	user, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(user, "prl", name), nil
}

// install fills the cache where it is not full yet. Processes that do so at the same time wait for one of them, and what
// is in the cache is whole, as it gets its name last.
func install(ctx context.Context) (distribution, error) {
	if err := Missing(); err != nil {
		return distribution{}, err
	}
	dir, err := cacheDir()
	if err != nil {
		return distribution{}, err
	}
	unlock, err := lock(ctx, dir+".lock")
	if err != nil {
		return distribution{}, err
	}
	defer unlock()
	lib := filepath.Join(dir, "lib")
	if _, err := os.Stat(lib); errors.Is(err, os.ErrNotExist) {
		if err := download(ctx, dir, lib); err != nil {
			return distribution{}, err
		}
	}
	jars, err := filepath.Glob(filepath.Join(lib, "*.jar"))
	if err != nil {
		return distribution{}, err
	}
	d := distribution{jars: jars}
	archive := filepath.Join(dir, "kafka.jsa")
	if _, err := os.Stat(archive); errors.Is(err, os.ErrNotExist) {
		if err := d.buildArchive(ctx, dir, archive); err != nil {
			return d, nil // it starts without one, only slower
		}
	}
	d.archive = archive
	return d, nil
}

// download has Maven put the jars into lib.
func download(ctx context.Context, dir, lib string) error {
	work, err := os.MkdirTemp(dir, "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.WriteFile(filepath.Join(work, "pom.xml"), pom, 0o644); err != nil {
		return err
	}
	mvn := exec.CommandContext(ctx, "mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=lib")
	mvn.Dir = work
	if out, err := mvn.CombinedOutput(); err != nil {
		return fmt.Errorf("download Kafka's jars with Maven: %w:\n%s", err, out)
	}
	return os.Rename(filepath.Join(work, "lib"), lib)
}

// buildArchive runs a node once and has its virtual machine write the classes it loaded.
func (d distribution) buildArchive(ctx context.Context, dir, archive string) error {
	work, err := os.MkdirTemp(dir, "archive-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	written := filepath.Join(work, "kafka.jsa")
	c, err := start(ctx, d, Config{Dir: work, Nodes: 1}, "-XX:ArchiveClassesAtExit="+written)
	if err != nil {
		return err
	}
	if err := c.Stop(); err != nil {
		return err
	}
	return os.Rename(written, archive)
}

// lock takes the lock file for this process alone, and makes the folder it guards.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	if err := os.MkdirAll(strings.TrimSuffix(path, ".lock"), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for %s: %w", path, ctx.Err()), f.Close())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
