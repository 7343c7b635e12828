package chaos

import (
	"fmt"
	"os"
	"path/filepath"
)

// A disk makes the processes' writes slow or fail, while its file is there (pipeline.WriteFault).
type disk struct{ path string }

func newDisk(dir string) disk { return disk{filepath.Join(dir, "disk-faults")} }

// env is what processes are started with.
func (d disk) env() string { return "PRL_DISK_FAULTS=" + d.path }

// set puts a fault in force. The file appears whole.
func (d disk) set(k Kind) error {
	text := "400ms 0"
	if k == DiskFull {
		text = "10ms 0.5"
	}
	temp := d.path + ".new"
	if err := os.WriteFile(temp, []byte(text), 0o644); err != nil {
		return fmt.Errorf("disturb the disk: %w", err)
	}
	if err := os.Rename(temp, d.path); err != nil {
		return fmt.Errorf("disturb the disk: %w", err)
	}
	return nil
}

func (d disk) clear() error {
	if err := os.Remove(d.path); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("calm the disk: %w", err)
	}
	return nil
}
