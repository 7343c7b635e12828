package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/safetensors"
	"github.com/prl-project/prl/stages/internal/weights"
)

// besideWeights are the files of a Hugging Face folder that say how a model is spoken to. An export takes them over as they
// are.
var besideWeights = []string{
	"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model",
	"chat_template.jinja", "generation_config.json",
}

// Export writes a published version as a Hugging Face folder: config, weights (the published bytes; an adapter is put into
// its base), tokenizer with chat template, generation config. What belongs to the tokenizer of model.folder is taken from
// there. dir must not exist; it is there whole or not at all.
func Export(ctx context.Context, rt *pipeline.Runtime, model ModelConfig, version int64, dir string) error {
	if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("export version %d: %s is there already: name a new folder", version, dir)
	}
	published, err := versions(ctx, rt)
	if err != nil {
		return fmt.Errorf("export version %d: %w", version, err)
	}
	v := published.at(version)
	if v == nil {
		return fmt.Errorf("export version %d: run %s %s", version, rt.Run.Name, published)
	}
	if err := export(ctx, rt, model, published, v, dir); err != nil {
		return fmt.Errorf("export version %d: %w", version, err)
	}
	return nil
}

func export(ctx context.Context, rt *pipeline.Runtime, model ModelConfig, published history, v *schemas.PolicyVersion, dir string) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".draft-")
	if err != nil {
		return err
	}
	err = fill(ctx, rt.Blobs, draft, model, published, v)
	if err == nil {
		err = os.Chmod(draft, 0o755)
	}
	if err == nil {
		err = os.Rename(draft, dir)
	}
	if err != nil {
		return errors.Join(err, os.RemoveAll(draft))
	}
	return nil
}

// fill writes what v publishes into the folder dir, and the files beside it: of the native tokenizer lm knows what they are.
func fill(ctx context.Context, blobs *pipeline.Blobs, dir string, model ModelConfig, published history, v *schemas.PolicyVersion) error {
	config, err := blobs.Get(ctx, v.Config)
	if err != nil {
		return err
	}
	tokenizer, err := blobs.Get(ctx, v.Tokenizer)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, fileWeights)
	if err := writeWhole(ctx, blobs, path, published, v); err != nil {
		return err
	}
	if model.Folder == "" {
		err = besideNative(dir, path, config, tokenizer)
	} else {
		err = besideFolder(dir, model)
	}
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(dir, fileConfig), config, 0o644), os.WriteFile(filepath.Join(dir, fileTokenizer), tokenizer, 0o644))
}

// writeWhole writes the whole weights of v to a new file; only an adapter takes them into memory.
func writeWhole(ctx context.Context, blobs *pipeline.Blobs, path string, published history, v *schemas.PolicyVersion) error {
	chain, err := weights.NewHistory(published...).Chain(v)
	if err != nil {
		return err
	}
	if chain.Adapter != nil {
		whole, _, err := chain.Read(ctx, blobs, weights.Held{})
		if err != nil {
			return err
		}
		adapter, err := blobs.Get(ctx, chain.Adapter.Weights)
		if err != nil {
			return err
		}
		if err := weights.Merge(whole.Bytes, adapter); err != nil {
			return err
		}
		return os.WriteFile(path, whole.Bytes, 0o644)
	}
	blob := path + ".blob" // may be the blob itself under a second name: who has the folder must not be able to change it
	if err := chain.Fetch(ctx, blobs, blob); err != nil {
		return err
	}
	return errors.Join(copyTensors(path, blob), os.Remove(blob))
}

// copyTensors copies a file if it is a safetensors file.
func copyTensors(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close() //nolint:errcheck // it was read
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if _, err := safetensors.ReadHeader(in, info.Size()); err != nil {
		return fmt.Errorf("the weights are no safetensors file: %w", err)
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// besideFolder takes over the files that stand beside the weights in model.folder.
func besideFolder(dir string, model ModelConfig) error {
	from, err := model.folder()
	if err != nil {
		return err
	}
	for _, name := range besideWeights {
		data, err := os.ReadFile(filepath.Join(from, name))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// besideNative writes the files that lm writes beside the weights, which are at path and stay as they are.
func besideNative(dir, path string, config, tokenizer []byte) error {
	var cfg lm.Config
	if err := json.Unmarshal(config, &cfg); err != nil {
		return fmt.Errorf("%s: %w", fileConfig, err)
	}
	tok, err := lm.ParseTokenizer(tokenizer)
	if err != nil {
		return err
	}
	model, err := lm.New(cfg, 0)
	if err != nil {
		return err
	}
	params, err := readSafetensors(path)
	if err != nil {
		return err
	}
	if err := model.Load(params); err != nil {
		return err
	}
	published := path + ".published"
	return errors.Join(os.Rename(path, published), lm.SaveFolder(dir, model, tok), os.Rename(published, path))
}
