package env

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// LongestLine is that of a file of tasks, in bytes.
const LongestLine = 1 << 20

// Lines calls each for every line that is not blank of a file of tasks, such as JSONL; lines count from 1, and line is valid
// during the call only. An error names the file and the line.
func Lines(name string, from io.Reader, each func(n int, line []byte) error) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, LongestLine)
	n := 0
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		if err := each(n, line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fmt.Errorf("%s:%d: longer than %d bytes", name, n+1, LongestLine)
	case err != nil:
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
