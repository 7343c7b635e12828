package trainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Export writes a published version as a Hugging Face Llama folder: config, weights (the published bytes), tokenizer
// with chat template, generation config. dir must not exist; it is there whole or not at all.
func Export(ctx context.Context, rt *pipeline.Runtime, version int64, dir string) error {
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
	if err := export(ctx, rt, v, dir); err != nil {
		return fmt.Errorf("export version %d: %w", version, err)
	}
	return nil
}

func export(ctx context.Context, rt *pipeline.Runtime, v *schemas.PolicyVersion, dir string) error {
	model, tokenizer, err := loadModel(ctx, rt, v)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	draft, err := os.MkdirTemp(filepath.Dir(dir), filepath.Base(dir)+".draft-")
	if err != nil {
		return err
	}
	err = lm.SaveFolder(draft, model, tokenizer)
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

func loadModel(ctx context.Context, rt *pipeline.Runtime, v *schemas.PolicyVersion) (*lm.Model, *lm.Tokenizer, error) {
	files := make([][]byte, 3)
	for i, ref := range []schemas.BlobRef{v.Config, v.Tokenizer, v.Weights} {
		var err error
		if files[i], err = rt.Blobs.Get(ctx, ref); err != nil {
			return nil, nil, err
		}
	}
	var config lm.Config
	if err := json.Unmarshal(files[0], &config); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	tokenizer, err := lm.ParseTokenizer(files[1])
	if err != nil {
		return nil, nil, err
	}
	model, err := lm.New(config, 0)
	if err != nil {
		return nil, nil, err
	}
	params, err := lm.ReadSafetensors(files[2])
	if err != nil {
		return nil, nil, err
	}
	return model, tokenizer, model.Load(params)
}
