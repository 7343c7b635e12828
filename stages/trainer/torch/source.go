// Package torch is the source of the PyTorch worker, a Python package (prl_torch) whose package comment says what its parts
// do. The trainer carries it in its binary and runs it with an interpreter that has what pyproject.toml pins: so the two
// ends of the pipe are always of one version.
//
// `make torch` sets such an interpreter up (install.py).
package torch

import "embed"

// Source is the package prl_torch, in a folder of that name.
//
//go:embed prl_torch/*.py
var Source embed.FS
