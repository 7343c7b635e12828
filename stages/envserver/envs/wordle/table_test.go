package wordle

import (
	"testing"

	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func TestTable(t *testing.T) {
	w := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`wordle`", w, 100, reference(w), random(w))
}
