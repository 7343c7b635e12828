package pipeline

import (
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// processMetrics are those of the process as such, of all its runs: what Go and the system say of it.
func processMetrics() prometheus.Gatherer {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return reg
}

// ReadyGauge is 1 for each stage that does its work.
func ReadyGauge(h *Health) *Gauges {
	return NewGauges("prl_stage_ready", "1 while the stage does its work, as /readyz says; else 0.", []string{"stage"}, func(set func(float64, ...string)) {
		stages, _ := h.snapshot()
		for stage, ready := range stages {
			value := 0.0
			if ready {
				value = 1
			}
			set(value, stage)
		}
	})
}

// diskPatience is how long a disk may take to say how full it is: a network's may never do.
const diskPatience = time.Second

// disks asks how full the disks of some folders are.
type disks struct {
	folders map[string]string // by what they are called

	mu     sync.Mutex
	asking chan struct{} // closed when the answer is there; nil while nobody asks
	full   map[string]fullness
}

// fullness is what a disk says, in bytes.
type fullness struct{ free, size float64 }

// DiskGauges say how full the disks are that hold some folders, by what these are called. A folder that is not there is left out.
func DiskGauges(folders map[string]string) []*Gauges {
	d := &disks{folders: folders}
	gauge := func(name, help string, figure func(fullness) float64) *Gauges {
		return NewGauges(name, help, []string{"folder"}, func(set func(float64, ...string)) {
			for folder, f := range d.ask() {
				set(figure(f), folder)
			}
		})
	}
	return []*Gauges{
		gauge("prl_process_disk_free_bytes", "Bytes that this process may still write to the disk of a folder: run (the run's), parquet (the sink's, where it is another).",
			func(f fullness) float64 { return f.free }),
		gauge("prl_process_disk_size_bytes", "Size of the disk of a folder.", func(f fullness) float64 { return f.size }),
	}
}

// ask gives what the disks say; nothing of any while one of them does not answer.
func (d *disks) ask() map[string]fullness {
	d.mu.Lock()
	asking := d.asking
	if asking == nil {
		asking = make(chan struct{})
		d.asking = asking
		go func() { // it ends with the system's answer
			full := map[string]fullness{}
			for name, dir := range d.folders {
				var s syscall.Statfs_t
				if syscall.Statfs(dir, &s) == nil {
					full[name] = fullness{float64(s.Bavail) * float64(s.Bsize), float64(s.Blocks) * float64(s.Bsize)}
				}
			}
			d.mu.Lock()
			defer d.mu.Unlock()
			d.full, d.asking = full, nil
			close(asking)
		}()
	}
	d.mu.Unlock()
	select {
	case <-asking:
	case <-time.After(diskPatience):
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.full
}
