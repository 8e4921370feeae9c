#!/bin/bash
# Installs what is missing, builds the release preset and runs the tests: fast, slow and cluster. Root or sudo.
#
#   tests/run.sh                  everything
#   tests/run.sh fast             the labels named (fast | slow | cluster | gpu)
#   SHARDFIT_SKIP_SETUP=1 ...     the dependencies are there already
set -euo pipefail
cd "$(dirname "$0")/.."
say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
began=$(date +%s)
[ -n "${SHARDFIT_SKIP_SETUP:-}" ] || tests/setup/dependencies.sh
tests/setup/build.sh release
labels=$(printf '%s|' "${@:-fast slow cluster}" | sed 's/ /|/g; s/|$//')
if [[ $labels == *slow* ]]; then  # real weights for the tests that train on them
  SHARDFIT_SMOLLM2=$(examples/quickstart/weights.sh)
  export SHARDFIT_SMOLLM2
fi
say "Running the tests labelled $labels"
# Tests of the cluster share ports and processors: one after the other. The rest run two at a time.
if [[ $labels == *fast* || $labels == *slow* || $labels == *gpu* ]]; then
  ctest --preset release -L "^($labels)\$" -LE '^cluster$' -j2 --no-tests=error
fi
if [[ $labels == *cluster* ]]; then
  ctest --preset release -L '^cluster$' -j1
fi
say "Tests passed in $(($(date +%s) - began)) s"
