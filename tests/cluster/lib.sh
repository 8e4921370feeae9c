# Sourced by the tests of this folder: BUILD from the command line, a cluster of their own under $D, checks that count.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$(cd "${1:?usage: $0 BUILD}" && pwd)
skip() { echo "SKIPPED: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "starting Slurm's daemons needs root"
for p in munged slurmctld slurmd sbatch; do command -v $p >/dev/null || skip "$p is not installed (apt-get install slurm-wlm munge)"; done

unset ${!SBATCH_@} ${!SLURM_@} ${!SALLOC_@} ${!SHARDFIT_@}
D=$(mktemp -d /tmp/shardfit-cluster.XXXXXX)
finish() { "$here/stop.sh" "$D" || echo "stop.sh failed"; [ -n "${KEEP:-}" ] || rm -rf "$D"; }
trap finish EXIT
"$here/start.sh" "$D" --build "$BUILD" > "$D.start" 2>&1 || { cat "$D.start"; rm -f "$D.start"; exit 1; }
rm -f "$D.start"
export SLURM_CONF=$D/slurm.conf SHARDFIT_CONF=$D/shardfit.conf
mkdir -p "$D/jobs"; chmod 777 "$D/jobs"; cd "$D/jobs"

passed=0 failed=0
ok() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAILED: $*"; }
# check NAME COMMAND...: the command succeeds
check() { local name=$1; shift; if "$@" >/dev/null 2>&1; then ok; else fail "$name"; fi; }
# says NAME TEXT PATTERN...: every extended regular expression is in the text
says() {
  local name=$1 text=$2 p; shift 2
  for p in "$@"; do
    grep -qE -- "$p" <<< "$text" || { fail "$name: no /$p/ in: $text"; return; }
  done
  ok
}
equal() { if [ "$2" = "$3" ]; then ok; else fail "$1: \"$2\" instead of \"$3\""; fi; }
# run COMMAND...: at most 20 s; output in $out, exit status in $rc
run() { out=$(timeout 20 "$@" 2>&1); rc=$?; }
as_user="setpriv --reuid=65534 --regid=65534 --clear-groups"  # nobody
jobs_known() { timeout 10 scontrol -o show job 2>/dev/null | grep -c '^JobId=' || true; }
job_field() { timeout 10 scontrol -o show job "$1" | grep -oE "(^| )$2=[^ ]*" | head -1 | cut -d= -f2-; }
# wait_for SECONDS COMMAND...: polls
wait_for() { local n=$(($1 * 5)); shift; for _ in $(seq $n); do if "$@" >/dev/null 2>&1; then return 0; fi; sleep 0.2; done; return 1; }
job_is() { [ "$(job_field "$1" JobState)" = "$2" ]; }
id_of() { grep -oE '[0-9]+$' <<< "$1" | tail -1; }
summary() { echo "$passed passed, $failed failed"; [ $failed = 0 ]; }
