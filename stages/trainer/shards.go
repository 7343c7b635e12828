package trainer

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/prl-project/prl/stages/internal/safetensors"
)

// A shard is a safetensors file of a folder, open.
type shard struct {
	*os.File
	header *safetensors.Header
}

// joinShards writes the weights of the folder at dir to the new file path: its one file as it is, or the tensors of its
// shards in the order of their names.
func joinShards(dir, path string) (err error) {
	names, err := folderWeights(dir)
	if err != nil {
		return err
	}
	var shards []shard
	defer func() {
		for _, s := range shards {
			err = errors.Join(err, s.Close())
		}
	}()
	for _, name := range names {
		f, err := os.Open(filepath.Join(dir, name))
		if err != nil {
			return fmt.Errorf("model.folder: %w", err)
		}
		shards = append(shards, shard{File: f})
		info, err := f.Stat()
		if err != nil {
			return fmt.Errorf("model.folder: %w", err)
		}
		if shards[len(shards)-1].header, err = safetensors.ReadHeader(f, info.Size()); err != nil {
			return fmt.Errorf("model.folder: %s: %w", name, err)
		}
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(out, 1<<20)
	return errors.Join(writeJoined(w, shards), w.Flush(), out.Close())
}

func writeJoined(w io.Writer, shards []shard) error {
	if len(shards) == 1 {
		_, err := io.Copy(w, shards[0].File)
		return err
	}
	type source struct {
		tensor safetensors.Tensor
		from   shard
	}
	var sources []source
	for _, s := range shards {
		for _, t := range s.header.Tensors {
			sources = append(sources, source{t, s})
		}
	}
	slices.SortFunc(sources, func(a, b source) int { return cmp.Compare(a.tensor.Name, b.tensor.Name) })
	var tensors []safetensors.Tensor
	for _, s := range sources {
		tensors = append(tensors, s.tensor)
	}
	header, err := safetensors.MakeHeader(shards[0].header.Metadata, tensors)
	if err != nil {
		return fmt.Errorf("model.folder: %w", err)
	}
	if _, err := w.Write(header.Raw); err != nil {
		return err
	}
	for _, s := range sources {
		t := s.tensor
		if _, err := io.Copy(w, io.NewSectionReader(s.from, t.From, t.To-t.From)); err != nil {
			return err
		}
	}
	return nil
}
