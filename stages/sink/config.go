package sink

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [sink]. A file is written when any of the limits is reached.
type Config struct {
	// Dir holds a folder per table; empty for runs/<run>/parquet.
	Dir string `toml:"dir"`
	// MaxRows is the number of records of a file (a poll may carry it somewhat above).
	MaxRows int `toml:"max_rows"`
	// MaxBytes is the size of a file's records as Kafka holds them.
	MaxBytes int64 `toml:"max_bytes"`
	// MaxAge is how long a record waits until it can be queried.
	MaxAge pipeline.Duration `toml:"max_age"`
	// MaxBufferedBytes bounds the records held in memory, of all partitions: above it the largest buffer is written.
	MaxBufferedBytes int64 `toml:"max_buffered_bytes"`
	// Drain is how long a stop goes on reading towards the end of the topics.
	Drain pipeline.Duration `toml:"drain"`
	// Share divides the partitions among several sinks: this is which of how many, counted from 0, as "0/2" and "1/2"; empty for a
	// sink that writes everything.
	Share string `toml:"share"`
}

// DefaultConfig writes a file every minute at the latest.
func DefaultConfig() Config {
	return Config{MaxRows: 100_000, MaxBytes: 64 << 20, MaxAge: pipeline.Duration(time.Minute), MaxBufferedBytes: 128 << 20, Drain: pipeline.Duration(30 * time.Second)}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	switch {
	case c.MaxRows < 1:
		return fmt.Errorf("sink.max_rows = %d: at least 1", c.MaxRows)
	case c.MaxBytes < 1:
		return fmt.Errorf("sink.max_bytes = %d: at least 1", c.MaxBytes)
	case c.MaxAge <= 0:
		return fmt.Errorf("sink.max_age = %v: above 0s", c.MaxAge)
	case c.MaxBufferedBytes < c.MaxBytes:
		return fmt.Errorf("sink.max_buffered_bytes = %d: at least sink.max_bytes = %d", c.MaxBufferedBytes, c.MaxBytes)
	case c.Drain < 0:
		return fmt.Errorf("sink.drain = %v: 0s or more", c.Drain)
	}
	_, err := parseShare(c.Share)
	return err
}
