package catch

import (
	"testing"

	"github.com/prl-project/prl/stages/envserver/env/envtest"
)

func TestTable(t *testing.T) {
	c := open(t, func(*Config) {})
	envtest.Row(t, "../../README.md", "`catch`", c, c.Info().Eval, reference, random)
}
