package trainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Files of a Hugging Face folder.
const (
	fileConfig    = "config.json"
	fileTokenizer = "tokenizer.json"
	fileWeights   = "model.safetensors"
	fileIndex     = "model.safetensors.index.json"
)

// validateFolder checks the section on its own; only the trainer looks into the folder.
func (c ModelConfig) validateFolder() error {
	if _, err := c.folder(); err != nil {
		return err
	}
	given, usual := reflect.ValueOf(c), reflect.ValueOf(DefaultModelConfig())
	for i := range given.NumField() {
		key := given.Type().Field(i).Tag.Get("toml")
		if key != "folder" && key != "renderer" && !given.Field(i).IsZero() && !given.Field(i).Equal(usual.Field(i)) {
			return fmt.Errorf("model.%s = %v: leave it out with model.folder, whose config.json says it", key, given.Field(i))
		}
	}
	return nil
}

// folder is the path of model.folder.
func (c ModelConfig) folder() (string, error) {
	if !strings.Contains(c.Folder, "://") {
		return c.Folder, nil
	}
	u, err := url.Parse(c.Folder)
	if err != nil {
		return "", fmt.Errorf("model.folder = %q: %w", c.Folder, err)
	}
	if u.Scheme != "file" || u.Host != "" && u.Host != "localhost" || u.Path == "" {
		return "", fmt.Errorf("model.folder = %q: a folder on the trainer's disk, or its file:// URL; copy one from elsewhere there first (of a model hub: hf download <model> --local-dir <folder>)", c.Folder)
	}
	return filepath.FromSlash(u.Path), nil
}

// Context is the longest context that a policy can have in a run, in tokens, as far as the configuration says: what a folder
// allows may be less.
func (c ModelConfig) Context(run pipeline.RunConfig) int {
	if c.Folder != "" {
		return run.SeqLen
	}
	return c.MaxPosition
}

// folderFiles are config.json and tokenizer.json of the folder at dir.
func folderFiles(dir string) (config, tokenizer []byte, err error) {
	if config, err = os.ReadFile(filepath.Join(dir, fileConfig)); err == nil {
		tokenizer, err = os.ReadFile(filepath.Join(dir, fileTokenizer))
	}
	if err != nil {
		return nil, nil, fmt.Errorf("model.folder: a Hugging Face folder has %s, %s and %s (or its shards and %s): %w", fileConfig, fileTokenizer, fileWeights, fileIndex, err)
	}
	return config, tokenizer, nil
}

// folderModel reads the folder at dir into a model of the native learner.
func folderModel(dir string) (m *lm.Model, config, tokenizer []byte, err error) {
	if config, tokenizer, err = folderFiles(dir); err != nil {
		return nil, nil, nil, err
	}
	var cfg lm.Config
	if err = json.Unmarshal(config, &cfg); err == nil {
		m, err = lm.New(cfg, 0)
	}
	if err != nil {
		return nil, nil, nil, fmt.Errorf("model.folder: the native learner holds Llama and Qwen3 models in one size of heads, not this one (trainer.learner = %q trains what transformers loads): %w", LearnerTorch, err)
	}
	shards, err := folderWeights(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	var params []lm.Param
	for _, shard := range shards {
		p, err := readSafetensors(filepath.Join(dir, shard))
		if err != nil {
			return nil, nil, nil, fmt.Errorf("model.folder: %s: %w", shard, err)
		}
		params = append(params, p...)
	}
	if err := m.Load(params); err != nil {
		return nil, nil, nil, fmt.Errorf("model.folder: %w", err)
	}
	return m, config, tokenizer, nil
}

// folderWeights names the files with the weights of the folder at dir: one, or the shards that its index lists.
func folderWeights(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, fileIndex))
	if errors.Is(err, fs.ErrNotExist) {
		return []string{fileWeights}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("model.folder: %w", err)
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil {
		return nil, fmt.Errorf("model.folder: %s: %w", fileIndex, err)
	}
	shards := slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))
	for _, s := range shards {
		if filepath.Base(s) != s || !strings.HasSuffix(s, ".safetensors") {
			return nil, fmt.Errorf("model.folder: %s lists %q, which is no safetensors file of the folder", fileIndex, s)
		}
	}
	return shards, nil
}
