// Command crds copies KEDA's CustomResourceDefinitions out of its module, which nothing is built of, into a folder.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// keda is the version, and what its files hash to.
const (
	keda = "github.com/kedacore/keda/v2@v2.21.0"
	sum  = "h1:R6z2HZvstK4RLUMxroNACzBj74xGxt3kG59b5Xc+Xps="
)

func main() {
	if err := copyInto(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func copyInto(dir string) error {
	out, err := exec.Command("go", "mod", "download", "-json", keda).Output()
	if err != nil {
		return fmt.Errorf("download %s: %w\n%s", keda, err, out)
	}
	var got struct{ Dir, Sum string }
	if err := json.Unmarshal(out, &got); err != nil {
		return err
	}
	if got.Sum != sum {
		return fmt.Errorf("%s hashes to %s, not to %s", keda, got.Sum, sum)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, kind := range []string{"scaledobjects", "triggerauthentications"} {
		name := "keda.sh_" + kind + ".yaml"
		text, err := os.ReadFile(filepath.Join(got.Dir, "config/crd/bases", name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}
