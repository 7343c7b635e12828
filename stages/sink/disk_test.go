package sink

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// diskFaults is the file that says how the disks of this package's tests misbehave (pipeline.WriteFault).
var diskFaults string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "prl-sink-*")
	if err != nil {
		panic(err)
	}
	diskFaults = filepath.Join(dir, "faults")
	os.Setenv("PRL_DISK_FAULTS", diskFaults)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// While its disk is full the sink waits where it is and is not ready; nothing it has read is lost.
func TestSink_WaitsForTheDisk(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cfg := config(dir)
	cfg.MaxRows = 1
	stop := start(t, rt, cfg)
	eventually(t, func() bool { return rt.Health.Ready(stage) })
	if err := os.WriteFile(diskFaults, []byte("0s 1"), 0o600); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, client(t, rt), "a", 3)
	eventually(t, func() bool { return !rt.Health.Ready(stage) })
	if got := points(t, dir); len(got) != 0 {
		t.Errorf("%d records were written to a full disk", len(got))
	}
	if err := os.Remove(diskFaults); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return slices.Equal(points(t, dir), want("a", 3)) })
	eventually(t, func() bool { return rt.Health.Ready(stage) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if rt.Health.Ready(stage) {
		t.Error("a sink that has stopped is ready")
	}
}
