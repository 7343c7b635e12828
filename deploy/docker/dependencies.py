"""Prints what a pyproject.toml depends on, a line each, for pip."""

import sys
import tomllib

with open(sys.argv[1], "rb") as f:
    print(*tomllib.load(f)["project"]["dependencies"], sep="\n")
