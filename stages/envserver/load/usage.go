package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process and its children took between two moments.
type usage struct {
	CPU    time.Duration
	Before int64 // resident bytes at the first moment
	Peak   int64 // most resident bytes: the sum of each one's own most
}

// tick is the unit of CPU time in /proc (USER_HZ), the same on every Linux that Go runs on.
const tick = time.Second / 100

// A meter reads what a process, and those it started, have taken.
type meter struct {
	pid    int
	cpu    time.Duration // at the first moment
	before int64
}

func newMeter(pid int) (*meter, error) {
	cpu, now, _, err := measure(pid)
	return &meter{pid, cpu, now}, err
}

// read is what was taken since the meter was made.
func (m *meter) read() (usage, error) {
	cpu, _, peak, err := measure(m.pid)
	return usage{cpu - m.cpu, m.before, max(m.before, peak)}, err // VmHWM lags behind VmRSS by some pages
}

// measure adds up a process and its children.
func measure(pid int) (cpu time.Duration, resident, peak int64, err error) {
	for _, p := range family(pid) {
		c, r, most, err := measureOne(p)
		if err != nil {
			if p == pid {
				return 0, 0, 0, err
			}
			continue // it has ended
		}
		cpu, resident, peak = cpu+c, resident+r, peak+most
	}
	return cpu, resident, peak, nil
}

func measureOne(pid int) (cpu time.Duration, resident, peak int64, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("what the server took: %w", err)
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	for _, i := range []int{11, 12} { // utime, stime: proc_pid_stat(5)
		n, err := strconv.ParseInt(string(fields[i]), 10, 64)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("what the server took: %w", err)
		}
		cpu += time.Duration(n) * tick
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, 0, fmt.Errorf("what the server took: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		key, rest, _ := strings.Cut(line, ":")
		if key != "VmRSS" && key != "VmHWM" {
			continue
		}
		kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		if err != nil {
			return 0, 0, 0, fmt.Errorf("what the server took: %s: %w", key, err)
		}
		if key == "VmRSS" {
			resident = kib << 10
		} else {
			peak = kib << 10
		}
	}
	return cpu, resident, peak, nil
}

// family is a process and those it started, and they.
func family(pid int) []int {
	all := []int{pid}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // the pattern is well-formed
	for _, list := range lists {
		text, _ := os.ReadFile(list) // of a thread that has ended
		for _, child := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, family(n)...)
			}
		}
	}
	return all
}
