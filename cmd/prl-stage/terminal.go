package main

import (
	"io"
	"os"
	"sync"

	"github.com/prl-project/prl/stages"
)

// outputs are where the process says what it does, and where it logs: on a terminal the same, so that neither tears the other.
var outputs = sync.OnceValues(func() (out, logs io.Writer) { return stages.Terminal(os.Stdout, os.Stderr) })

func stdout() io.Writer {
	out, _ := outputs()
	return out
}

func stderr() io.Writer {
	_, logs := outputs()
	return logs
}
