package serve

import (
	"os"
	"strings"
	"testing"
)

// The README shows the very class that is tested.
func TestREADME(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	class, err := os.ReadFile("openenv/testdata/wordle_trl.py")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(readme), "```python\n"+string(class)+"```\n") {
		t.Error("the example is another one")
	}
}
