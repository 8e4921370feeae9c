#!/bin/bash
# Configures and builds a preset with two jobs (a LibTorch file takes about 1 GB of memory): tests/setup/build.sh [PRESET] [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=${1:-release}
shift || true
say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
libtorch=${SHARDFIT_LIBTORCH:-${SHARDFIT_DEPS:-$HOME/.cache/shardfit}/libtorch-2.11.0/torch}
began=$(date +%s)
say "Building preset $preset"
log=build/$preset.configure.log
mkdir -p build
cmake --preset "$preset" -DSHARDFIT_LIBTORCH="$libtorch" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
grep -E '^-- shardfit' "$log" || true
targets=()
for t in "$@"; do targets+=(--target "$t"); done
jobs=$(nproc)
memory_gib=$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)
[ "$jobs" -le "$((memory_gib / 2))" ] || jobs=$((memory_gib / 2 > 0 ? memory_gib / 2 : 1))
if [ -t 1 ]; then
  cmake --build --preset "$preset" -j"$jobs" "${targets[@]}"
else  # a plain line now and then
  cmake --build --preset "$preset" -j"$jobs" "${targets[@]}" 2>&1 | awk '
    /^\[[0-9]+\/[0-9]+\]/ { split(substr($1, 2), n, /[\/\]]/); if (n[1] % 25 == 0 || n[1] == n[2]) { print; fflush() } next } { print; fflush() }'
fi
say "Built preset $preset in $(($(date +%s) - began)) s"
