package reversetext

import (
	"testing"

	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func TestTable(t *testing.T) {
	r := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`reverse-text`", r, r.Info().Eval, reference, letters)
}
