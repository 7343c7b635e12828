package pipeline

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"
)

// diskFaults is the file that says how disks misbehave: PRL_DISK_FAULTS names it, in the chaos harness only.
var diskFaults = sync.OnceValue(func() string { return os.Getenv("PRL_DISK_FAULTS") })

// WriteFault is where the chaos harness makes the writing of files slow and disks full. The file named by PRL_DISK_FAULTS
// holds a duration and a share: a write waits for up to the first and fails with the probability of the second. Without
// that variable, or while there is no such file, it does nothing.
func WriteFault() error {
	if path := diskFaults(); path != "" {
		return writeFault(path)
	}
	return nil
}

func writeFault(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // the disks are in order
	}
	var wait string
	var share float64
	if _, err := fmt.Sscan(string(text), &wait, &share); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	longest, err := time.ParseDuration(wait)
	if err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	time.Sleep(time.Duration(rand.Float64() * float64(longest)))
	if rand.Float64() < share {
		return syscall.ENOSPC
	}
	return nil
}
