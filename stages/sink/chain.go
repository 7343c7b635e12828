package sink

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
)

// Keys of a file's metadata.
const (
	metaTopic     = "prl.topic"
	metaTopicID   = "prl.topic_id"
	metaPartition = "prl.partition"
	metaStart     = "prl.start_offset"
	metaNext      = "prl.next_offset" // where the next file of the chain starts
)

// A Chain is the files of one partition: each starts at the position where the one before it ended, gaps of the
// offsets included, and is created only if there is none for that position. So there is one chain, whoever writes it,
// and every record is in exactly one of its files.
type Chain struct {
	dir   string // the table's
	table *table
	file  fileName // of the next file
	next  int64    // position behind everything that was appended or skipped
	rows  []Row
	bytes int64
	first time.Time // when the oldest buffered row was appended
}

// A fileName says which part of a topic a file holds.
type fileName struct {
	topic     string // without the run's prefix
	id        [16]byte
	partition int32
	start     int64
}

func (n fileName) String() string {
	return fmt.Sprintf("%s-%x-%d-%020d.parquet", n.topic, n.id, n.partition, n.start)
}

// parseName reads what String writes. The topic may hold dashes.
func parseName(s string) (n fileName, ok bool) {
	s, ok = strings.CutSuffix(s, ".parquet")
	parts := strings.Split(s, "-")
	k := len(parts) - 3
	if !ok || k < 1 || len(parts[k]) != 32 || len(parts[k+2]) != 20 {
		return n, false
	}
	id, err := hex.DecodeString(parts[k])
	partition, err2 := strconv.ParseInt(parts[k+1], 10, 32)
	start, err3 := strconv.ParseInt(parts[k+2], 10, 64)
	if errors.Join(err, err2, err3) != nil {
		return n, false
	}
	return fileName{strings.Join(parts[:k], "-"), [16]byte(id), int32(partition), start}, true
}

// OpenChain finds where the files of a partition end, below dir. The topic is named without the run's prefix. A file of
// the same topic under another id means that the topic was deleted and made again, which is an error: the file's
// offsets mean other records.
func OpenChain(dir, topic string, id [16]byte, partition int32) (*Chain, error) {
	t, ok := tableOf(topic)
	if !ok {
		return nil, fmt.Errorf("topic %s is none of a run's", topic)
	}
	c := &Chain{dir: filepath.Join(dir, t.name), table: t, file: fileName{topic, id, partition, 0}}
	if err := makeDir(c.dir); err != nil {
		return nil, err
	}
	return c, c.Reopen()
}

// Reopen throws away what is buffered and goes on at the end of the files.
func (c *Chain) Reopen() error {
	c.rows, c.bytes, c.file.start = nil, 0, 0
	entries, err := os.ReadDir(c.dir) // in the order of names, so of positions
	if err != nil {
		return fmt.Errorf("list the files of %s: %w", c.file.topic, err)
	}
	last := ""
	for _, e := range entries {
		n, ok := parseName(e.Name())
		if !ok || n.topic != c.file.topic {
			continue
		}
		if n.id != c.file.id {
			return pipeline.Fatal("topic %s was made again: it has the id %x, %s in %s is of an earlier one; move the folder away, or give the run another name",
				c.file.topic, c.file.id, n, c.dir)
		}
		if n.partition == c.file.partition {
			last = e.Name()
		}
	}
	if last != "" {
		if c.file.start, err = readEnd(filepath.Join(c.dir, last)); err != nil {
			return err
		}
	}
	c.next = c.file.start
	return nil
}

// readEnd is the position at which a file ends.
func readEnd(path string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, fmt.Errorf("read where the files end: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read where the files end: %w", err)
	}
	p, err := parquet.OpenFile(f, info.Size(), parquet.SkipPageIndex(true), parquet.SkipBloomFilters(true))
	if err != nil {
		return 0, fmt.Errorf("read where the files end: %s: %w", path, err)
	}
	text, _ := p.Lookup(metaNext)
	next, err := strconv.ParseInt(text, 10, 64)
	if n, ok := parseName(filepath.Base(path)); err != nil || !ok || next <= n.start {
		return 0, pipeline.Fatal("%s says that the next file starts at %q: it is not the sink's", path, text)
	}
	return next, nil
}

// Next is the position from which the chain goes on: the offset of the next record, or of a gap before it.
func (c *Chain) Next() int64 { return c.next }

// Append buffers a record. Offsets may leave gaps and never go back.
func (c *Chain) Append(r Row, now time.Time) error {
	if err := c.Skip(r.Offset + 1); err != nil {
		return err
	}
	if len(c.rows) == 0 {
		c.first = now
	}
	c.rows = append(c.rows, r)
	c.bytes += r.size()
	return nil
}

// Skip moves the position over offsets that hold no record: markers of transactions, aborted and compacted records.
func (c *Chain) Skip(next int64) error {
	if next <= c.next {
		return pipeline.Fatal("%s/%d: offset %d came again, the position is %d", c.file.topic, c.file.partition, next-1, c.next)
	}
	c.next = next
	return nil
}

// Flush publishes what is buffered as the next file of the chain; without a record there is none. After ErrTaken the
// chain must be opened again. It returns how many records could not be read.
func (c *Chain) Flush() (unreadable int, err error) {
	if len(c.rows) == 0 {
		return 0, nil
	}
	metadata := map[string]string{
		metaTopic: c.file.topic, metaTopicID: fmt.Sprintf("%x", c.file.id), metaPartition: strconv.Itoa(int(c.file.partition)),
		metaStart: strconv.FormatInt(c.file.start, 10), metaNext: strconv.FormatInt(c.next, 10),
	}
	err = publish(c.dir, c.file.String(), func(w io.Writer) (err error) {
		unreadable, err = c.table.write(w, c.file.topic, c.file.partition, c.rows, metadata)
		return err
	})
	if err != nil {
		return unreadable, err
	}
	c.rows, c.bytes, c.file.start = nil, 0, c.next
	return unreadable, nil
}

// WriteSchemas puts a file without rows into every table's folder below dir, so that SQL finds the columns of a table
// that has no record yet.
func WriteSchemas(dir string) error {
	for _, spec := range pipeline.Topics {
		t, _ := tableOf(spec.Name)
		folder := filepath.Join(dir, t.name)
		if err := makeDir(folder); err != nil {
			return err
		}
		if err := sweep(folder, time.Now()); err != nil {
			return err
		}
		name := "schema-" + t.fingerprint() + ".parquet"
		if _, err := os.Stat(filepath.Join(folder, name)); err == nil {
			continue
		}
		err := publish(folder, name, func(w io.Writer) error {
			_, err := t.write(w, spec.Name, 0, nil, nil)
			return err
		})
		if err != nil && !errors.Is(err, ErrTaken) {
			return err
		}
	}
	return nil
}
