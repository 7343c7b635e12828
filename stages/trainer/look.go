package trainer

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/stages/inference/render"
)

// Look looks at the model that a run starts from, as far as that is quick: the files of model.folder and their sizes, its tokenizer
// and the chat format. It says what it found.
func (c ModelConfig) Look() (string, error) {
	if c.Folder == "" {
		return fmt.Sprintf("made from nothing: %s, %d layers of %d", c.Type, c.Layers, c.HiddenSize), nil
	}
	dir, err := c.folder()
	if err != nil {
		return "", err
	}
	_, tokenizer, err := folderFiles(dir)
	if err != nil {
		return "", err
	}
	r, err := render.New(c.Renderer, tokenizer)
	if err != nil {
		return "", fmt.Errorf("model.folder: %s: %w", fileTokenizer, err)
	}
	files, err := folderWeights(dir)
	if err != nil {
		return "", err
	}
	var size int64
	for _, name := range files {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			return "", fmt.Errorf("model.folder: its weights: %w", err)
		}
		size += info.Size()
	}
	return fmt.Sprintf("%s: %.1f GB of weights in %d files, chat format %s", dir, float64(size)/1e9, len(files), r.ID()), nil
}
