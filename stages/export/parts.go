package export

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/parquet-go/parquet-go"
)

// openParts locks the folder of an export that grows, begins it or holds it to what it began with, and reads what it has.
func openParts(cfg Config, run string) (p *parts, err error) {
	if err := os.MkdirAll(cfg.Out, 0o755); err != nil {
		return nil, fmt.Errorf("make the folder of an export: %w", err)
	}
	p = &parts{
		cfg: cfg, run: run, seen: map[rowKey]bool{}, sums: map[string]bool{}, next: map[string]int{}, held: map[string][]Row{}, oldest: map[string]time.Time{},
	}
	if p.lock, err = lockFolder(cfg.Out); err != nil {
		return nil, err
	}
	if err := p.agree(); err != nil {
		return nil, errors.Join(err, p.lock.Close())
	}
	for _, split := range []string{splitTrain, splitTest} {
		if err := p.read(split); err != nil {
			return nil, errors.Join(err, p.lock.Close())
		}
	}
	return p, nil
}

// begun is what a growing export began with.
type begun struct {
	Run    string `json:"run"`
	Follow bool   `json:"follow"`
	Select string `json:"select"`
}

// agree holds an export to the run and the settings it began with.
func (p *parts) agree() error {
	c := p.cfg
	least := "none"
	if c.MinReward != nil {
		least = fmt.Sprint(*c.MinReward)
	}
	own := begun{p.run, true, fmt.Sprintf("formats=%v envs=%v min_reward=%s fate=%s from_version=%d to_version=%d truncated=%v evals=%v max_tokens=%d test_share=%g seed=%d",
		c.Formats, c.Envs, least, c.Fate, c.FromVersion, c.ToVersion, c.Truncated, c.Evals, c.MaxTokens, c.TestShare, c.Seed)}
	path := filepath.Join(c.Out, manifest)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err := os.ReadDir(c.Out)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.Name() != manifest+".draft" {
				return fmt.Errorf("%s holds %s and is no export: name another folder (--out)", c.Out, e.Name())
			}
		}
		text, err := json.MarshalIndent(own, "", "  ")
		if err != nil {
			return err
		}
		if err := writeSynced(path+".draft", append(text, '\n')); err != nil {
			return err
		}
		return errors.Join(os.Rename(path+".draft", path), p.describe())
	}
	if err != nil {
		return err
	}
	var was begun
	if err := json.Unmarshal(data, &was); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if was != own {
		return fmt.Errorf("%s began of run %s with %s; here it is run %s with %s: set it back, or name another folder (--out)", c.Out, was.Run, was.Select, own.Run, own.Select)
	}
	return p.describe()
}

// describe writes the dataset card.
func (p *parts) describe() error {
	s := &Summary{Run: p.run}
	if p.cfg.TestShare > 0 {
		s.Test = 1 // some time
	}
	return writeSynced(filepath.Join(p.cfg.Out, "README.md"), card(s, p.cfg.Formats, "-*"))
}

// read finds what the parts of a split hold.
func (p *parts) read(split string) error {
	for ; ; p.next[split]++ {
		path := p.path(split, p.next[split])
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		each := func(row Row) {
			p.seen[keyOf(row.Provenance)], p.sums[row.Provenance.SHA256] = true, true
		}
		if p.cfg.Formats[0] == Parquet {
			err = readParquet(f, each)
		} else {
			err = readLines(f, each)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("read %s: %w", path, err)
		}
	}
}

func readLines(r io.Reader, each func(Row)) error {
	for d := json.NewDecoder(bufio.NewReaderSize(r, 1<<18)); ; {
		var row Row
		if err := d.Decode(&row); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		each(row)
	}
}

func readParquet(f *os.File, each func(Row)) error {
	r := parquet.NewGenericReader[Row](f)
	defer r.Close()
	rows := make([]Row, 64)
	for {
		clear(rows)
		n, err := r.Read(rows)
		for _, row := range rows[:n] {
			each(row)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
