#!/bin/bash
# Installs what shardfit is built and run with on Debian 12: packages by apt, LibTorch from the PyPI wheel of torch 2.11.
# Idempotent: a second run finds everything and takes a second. Run as root, or as a user with sudo.
#
#   tests/setup/dependencies.sh             everything
#   SHARDFIT_LIBTORCH=/path/to/torch ...    use that LibTorch (a folder with include/ and lib/) instead of downloading one
#   SHARDFIT_DEPS=DIR ...                   where LibTorch is unpacked (default: ~/.cache/shardfit)
set -euo pipefail

deps=${SHARDFIT_DEPS:-$HOME/.cache/shardfit}
torch_version=2.11.0

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() { printf 'dependencies.sh: %s\n' "$*" >&2; exit 1; }

. /etc/os-release 2>/dev/null || true
case "${ID:-}:${VERSION_ID:-}" in
  debian:12) ;;
  *) printf 'Note: this script is written for Debian 12 and this is %s; package names may differ.\n' "${PRETTY_NAME:-unknown}" >&2 ;;
esac
[ "$(uname -m)" = x86_64 ] || fail "the torch wheel is for x86_64 and this is $(uname -m); set SHARDFIT_LIBTORCH to a LibTorch of your own"

sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo >/dev/null || fail "needs root or sudo to install packages"
  sudo=sudo
fi

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  nlohmann-json3-dev libcurl4-openssl-dev libsqlite3-dev libgtest-dev libgmock-dev libbenchmark-dev libcli11-dev libfmt-dev
  libspdlog-dev libhwy-dev liburing-dev libgloo-dev libslurm-dev libutf8proc-dev
  slurm-wlm slurm-wlm-basic-plugins munge lua5.1
  python3 python3-pip python3-numpy unzip doc-debian procps sudo
)
missing=()
for p in "${packages[@]}"; do
  dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
if [ ${#missing[@]} -gt 0 ]; then
  say "Installing ${#missing[@]} Debian packages: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  $sudo apt-get update -qq
  # Services of these packages (slurmctld, munge) must not start by themselves: the test cluster runs its own.
  policy=
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    policy=1
    printf '#!/bin/sh\nexit 101\n' | $sudo tee /usr/sbin/policy-rc.d >/dev/null
    $sudo chmod +x /usr/sbin/policy-rc.d
    trap '$sudo rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  progress=()
  [ -t 1 ] && progress=(-o Dpkg::Progress-Fancy=1)
  # doc-debian's texts are read by the quickstart; slim images leave /usr/share/doc out.
  $sudo apt-get install -y -qq --no-install-recommends "${progress[@]}" -o Dpkg::Options::=--path-include=/usr/share/doc/debian/* \
    "${missing[@]}" >"${TMPDIR:-/tmp}/shardfit-apt.log" 2>&1 ||
    { tail -n 20 "${TMPDIR:-/tmp}/shardfit-apt.log" >&2; fail "apt-get failed; the whole log: ${TMPDIR:-/tmp}/shardfit-apt.log"; }
  [ -z "$policy" ] || { $sudo rm -f /usr/sbin/policy-rc.d; trap - EXIT; }
else
  say "Debian packages: all there"
fi

fetch_wheel() {  # fetch_wheel NAME VERSION: into $deps/wheels, and its path on standard output
  mkdir -p "$deps/wheels"
  local found
  found=$(find "$deps/wheels" -name "${1//-/_}-$2-*.whl" | head -1)
  if [ -z "$found" ]; then
    local quiet=(-q)
    [ -t 2 ] && quiet=()
    python3 -m pip download "${quiet[@]}" --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_28_x86_64 \
      --platform manylinux_2_25_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform any \
      -d "$deps/wheels" "$1==$2" >&2 || fail "could not download $1 $2 with pip"
    found=$(find "$deps/wheels" -name "${1//-/_}-$2-*.whl" | head -1)
  fi
  printf '%s\n' "$found"
}

if [ -n "${SHARDFIT_LIBTORCH:-}" ]; then
  [ -e "$SHARDFIT_LIBTORCH/lib/libtorch_cpu.so" ] || fail "SHARDFIT_LIBTORCH=$SHARDFIT_LIBTORCH holds no lib/libtorch_cpu.so"
  say "LibTorch: $SHARDFIT_LIBTORCH (yours)"
else
  root=$deps/libtorch-$torch_version
  nvcc=$(command -v nvcc || true)
  want=cpu
  [ -n "$nvcc" ] && want=cuda
  have=$(cat "$root/.complete" 2>/dev/null || true)
  if [ "$have" = "$want" ] || { [ "$have" = cuda ] && [ "$want" = cpu ]; }; then
    say "LibTorch $torch_version: $root/torch"
  else
    say "Fetching LibTorch $torch_version (530 MB download, 1.1 GB unpacked) into $root"
    rm -rf "$root.tmp"
    mkdir -p "$root.tmp"
    # Everything that libtorch_cpu.so needs beside itself: the CUDA runtime and CUPTI, small wheels of their own.
    for w in "torch $torch_version" "nvidia-cuda-runtime 13.0.96" "nvidia-cuda-cupti 13.0.85"; do
      # shellcheck disable=SC2086
      wheel=$(fetch_wheel $w)
      say "  unpacking $(basename "$wheel")"
      unzip -q -o "$wheel" 'torch/lib/*' 'torch/include/*' 'nvidia/cu13/lib/*' -d "$root.tmp" 2>/dev/null || [ $? = 11 ]
    done
    if [ "$want" = cpu ]; then  # half of it serves GPUs only
      rm -f "$root.tmp"/torch/lib/{libtorch_cuda,libtorch_cuda_linalg,libtorch_nvshmem}.so
    fi
    [ -e "$root.tmp/torch/lib/libtorch_cpu.so" ] || fail "the torch wheel did not hold libtorch_cpu.so"
    echo "$want" >"$root.tmp/.complete"
    rm -rf "$root"
    mv "$root.tmp" "$root"
    rm -rf "$deps/wheels"/torch-*.whl
  fi
fi
say "Dependencies are ready"
