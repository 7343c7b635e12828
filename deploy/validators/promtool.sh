#!/usr/bin/env bash
# Puts promtool into a folder: the one on PATH (a link), else Debian's, taken out of its package, which is not installed.
set -euo pipefail
dir=$1
if on_path=$(command -v promtool); then
	ln -sf "$on_path" "$dir/promtool"
	exit
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
	{ echo 'no promtool on PATH, and no Debian to take it from: install Prometheus (brew install prometheus)' >&2; exit 1; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
# A machine that has never asked Debian for its lists has none; only root may fetch them.
apt-get download -qq prometheus 2>/dev/null || { apt-get update -qq && apt-get download -qq prometheus; }
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin/promtool
mv usr/bin/promtool "$dir/"
