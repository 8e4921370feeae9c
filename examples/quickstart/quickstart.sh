#!/bin/bash
# From a bare Debian 12 to a trained model and its bill: installs, builds, starts a small Slurm cluster on this machine and runs
# two scenes on it. Root or sudo. Idempotent: what is there already is not made again.
#
#   examples/quickstart/quickstart.sh            everything
#   SHARDFIT_SKIP_SETUP=1 ...                    the dependencies are there already
#   SHARDFIT_QUICKSTART_DIR=DIR ...              where it works (default: build/quickstart)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
work=${SHARDFIT_QUICKSTART_DIR:-$top/build/quickstart}
build=$top/build/release
bin=$build/bin
began=$(date +%s)

bold() { printf '\n\033[1m%s\033[0m\n' "$*"; }
say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
fail() { printf 'quickstart.sh: %s\n' "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -E "$@"; fi; }

# 1. Install and build ---------------------------------------------------------------------------------------------------
[ -n "${SHARDFIT_SKIP_SETUP:-}" ] || "$top/tests/setup/dependencies.sh"
"$top/tests/setup/build.sh" release shardfit shardfit-train spank_shardfit
built=$(date +%s)
export PATH=$bin:$PATH

# 2. Real weights, real text ----------------------------------------------------------------------------------------------
mkdir -p "$work"
cp "$here"/{llama-3-8b.json,smollm2.json,train.sh} "$work/"
mkdir -p "$work/llama-3-8b" "$work/corpus/train" "$work/corpus/eval"
cp "$here/llama-3-8b/config.json" "$work/llama-3-8b/"
ln -sfn "$("$here/weights.sh")" "$work/smollm2-135m"
documents=/usr/share/doc/debian
[ -e "$documents/constitution.txt.gz" ] || fail "the package doc-debian left no texts in $documents; apt-get install --reinstall -o Dpkg::Options::=--path-include='/usr/share/doc/debian/*' doc-debian"
for f in constitution.txt debian-manifesto mailing-lists.txt bug-maint-info.txt bug-maint-mailcontrol.txt bug-log-mailserver.txt; do
  gzip -dc "$documents/$f.gz" >"$work/corpus/train/${f%.txt}.txt"
done
for f in social-contract.txt bug-reporting.txt; do gzip -dc "$documents/$f.gz" >"$work/corpus/eval/$f"; done
say "$(find "$work/corpus" -type f | wc -l) documents of the Debian project, $(du -cb "$work"/corpus/*/*.txt | tail -1 | cut -f1) bytes of text"

# 3. A cluster, and what this machine can do -------------------------------------------------------------------------------
cluster=$work/cluster
as_root "$top/tests/cluster/stop.sh" "$cluster" >/dev/null 2>&1 || true
say "Starting Slurm: CPU partitions in Berlin, Zurich and Virginia that run jobs, GPU partitions to choose from"
as_root "$top/tests/cluster/start.sh" "$cluster" --build "$build"
trap 'as_root "$top/tests/cluster/stop.sh" "$cluster" >/dev/null 2>&1 || true' EXIT
[ "$(id -u)" = 0 ] || as_root chown -R "$(id -u)" "$cluster/state"
export SLURM_CONF=$cluster/slurm.conf SHARDFIT_CONF=$cluster/shardfit.conf
say "Calibrating this machine's processors, two ranks at a time"
shardfit calibrate --quick --ranks 2

cd "$work"
bold "Scene 1: where should Llama-3-8B be trained, if the data may not leave the EU and Switzerland?"
echo "\$ sbatch --hw=show --hw-job=llama-3-8b.json --hw-pin='residency(EU|CH)' train.sh"
sbatch --hw=show --hw-job=llama-3-8b.json --hw-pin='residency(EU|CH)' train.sh

bold "Scene 2: fine-tune SmolLM2-135M for real, inside the same pin"
rm -rf out exported
echo "\$ sbatch --hw=auto --hw-job=smollm2.json --hw-pin='residency(EU|CH)' --hw-gpu=cpu train.sh"
job=$(sbatch --parsable --hw=auto --hw-job=smollm2.json --hw-pin='residency(EU|CH)' --hw-gpu=cpu train.sh | tee /dev/stderr | tail -1)
[[ $job =~ ^[0-9]+$ ]] || fail "sbatch gave no job id"
say "Job $job; its log, as it trains:"
shown=0
deadline=$(($(date +%s) + 900))
while :; do
  state=$(scontrol -o show job "$job" | sed -n 's/.* JobState=\([A-Z_]*\).*/\1/p')
  if [ -e "train-$job.log" ]; then
    lines=$(wc -l <"train-$job.log")
    [ "$lines" -le "$shown" ] || { sed -n "$((shown + 1)),${lines}p" "train-$job.log"; shown=$lines; }
  fi
  case $state in
    COMPLETED) break ;;
    PENDING | RUNNING | COMPLETING | CONFIGURING) ;;
    *) fail "job $job ended as $state; see $work/train-$job.log" ;;
  esac
  [ "$(date +%s)" -lt $deadline ] || { scancel "$job"; fail "job $job did not end within 15 minutes; see $work/train-$job.log"; }
  sleep 1
done

bold "The model, as safetensors"
shardfit-train export out exported --dtype bf16
ls -l exported
bold "The bill"
shardfit ledger import
shardfit report "$job"
say "Quickstart: $((built - began)) s to install and build, $(($(date +%s) - built)) s for the rest. Everything is in $work"
