package try

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/prl-project/prl/stages/envserver/env"
)

// An album keeps images as files for a person to look at, in a temporary folder of their own.
type album struct {
	folder string // empty before the first
	images int
}

// extensions are those of the formats that viewers know by them.
var extensions = map[string]string{"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp", "image/svg+xml": ".svg"}

// add writes an image and says where it is, or why it is nowhere.
func (a *album) add(i env.Image) string {
	if a.folder == "" {
		folder, err := os.MkdirTemp("", "prl-play-")
		if err != nil {
			return fmt.Sprintf("(not kept: %v)", err)
		}
		a.folder = folder
	}
	a.images++
	path := filepath.Join(a.folder, fmt.Sprint(a.images, extensions[i.MIME]))
	if err := os.WriteFile(path, i.Data, 0o600); err != nil {
		return fmt.Sprintf("(not kept: %v)", err)
	}
	return path
}

// remove takes all of it away.
func (a *album) remove() {
	if a.folder != "" {
		_ = os.RemoveAll(a.folder) // what stays is in a temporary folder
	}
}
