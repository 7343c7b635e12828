package sink

import (
	"fmt"
	"time"
)

// Config is the section [sink]. A file is written when any of the limits is reached.
type Config struct {
	// Dir holds a folder per table; empty for runs/<run>/parquet.
	Dir string `toml:"dir"`
	// MaxRows is the number of records of a file (a poll may carry it somewhat above).
	MaxRows int `toml:"max_rows"`
	// MaxBytes is the size of a file's records as Kafka holds them.
	MaxBytes int64 `toml:"max_bytes"`
	// MaxAgeMS is how long, in milliseconds, a record waits until it can be queried.
	MaxAgeMS int64 `toml:"max_age_ms"`
	// MaxBufferedBytes bounds the records held in memory, of all partitions: above it the largest buffer is written.
	MaxBufferedBytes int64 `toml:"max_buffered_bytes"`
	// DrainTimeoutMS is how long, in milliseconds, a stop goes on reading towards the end of the topics.
	DrainTimeoutMS int64 `toml:"drain_timeout_ms"`
}

// DefaultConfig writes a file every minute at the latest.
func DefaultConfig() Config {
	return Config{MaxRows: 100_000, MaxBytes: 64 << 20, MaxAgeMS: 60_000, MaxBufferedBytes: 128 << 20, DrainTimeoutMS: 30_000}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	switch {
	case c.MaxRows < 1:
		return fmt.Errorf("sink.max_rows = %d: at least 1", c.MaxRows)
	case c.MaxBytes < 1:
		return fmt.Errorf("sink.max_bytes = %d: at least 1", c.MaxBytes)
	case c.MaxAgeMS < 1:
		return fmt.Errorf("sink.max_age_ms = %d: at least 1", c.MaxAgeMS)
	case c.MaxBufferedBytes < c.MaxBytes:
		return fmt.Errorf("sink.max_buffered_bytes = %d: at least sink.max_bytes = %d", c.MaxBufferedBytes, c.MaxBytes)
	case c.DrainTimeoutMS < 0:
		return fmt.Errorf("sink.drain_timeout_ms = %d: 0 or more", c.DrainTimeoutMS)
	}
	return nil
}

func (c Config) maxAge() time.Duration { return time.Duration(c.MaxAgeMS) * time.Millisecond }
func (c Config) drainTimeout() time.Duration {
	return time.Duration(c.DrainTimeoutMS) * time.Millisecond
}
