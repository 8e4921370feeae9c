#!/bin/bash
# start.sh DIR [--build BUILD] [--port BASE] [--db]
# Starts a Slurm cluster on this machine under DIR: munged, slurmctld, one slurmd a node. Root, no systemd. Then:
#   export SLURM_CONF=DIR/slurm.conf SHARDFIT_CONF=DIR/shardfit.conf
# --build BUILD  loads shardfit's plugins and Lua from that build folder; without it Slurm is plain
# --port BASE    ports BASE..BASE+19; default: the first free block from 27800, so that several clusters run side by side
# --db           slurmdbd with MariaDB as well (db.sh)
# Prints the state of the nodes; exit 1 with the reason if the cluster is not up within a minute.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
die() { echo "start.sh: $*" >&2; exit 1; }
[ $# -ge 1 ] || die "usage: start.sh DIR [--build BUILD] [--port BASE] [--db]"
D=$1; shift
build= port= db=0
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=$(cd "$2" && pwd) || die "no build folder $2"; shift 2 ;;
    --port) port=$2; shift 2 ;;
    --db) db=1; shift ;;
    *) die "unknown option $1" ;;
  esac
done
[ "$(id -u)" = 0 ] || die "must run as root (it starts Slurm's daemons)"
for p in munged slurmctld slurmd sbatch; do command -v $p >/dev/null || die "$p is not installed (apt-get install slurm-wlm munge)"; done

mkdir -p "$D"; D=$(cd "$D" && pwd); chmod 755 "$D"
# alive NAME PIDFILE: the file names a running process of that name
alive() { [ -s "$2" ] && [ "$(cat "/proc/$(cat "$2")/comm" 2>/dev/null)" = "$1" ]; }
if alive slurmctld "$D/run/slurmctld.pid"; then die "a cluster runs under $D already (stop.sh $D)"; fi
mkdir -p "$D"/{ctld,run,log,munge,dev,state,spool,regions.d}
for i in 0 1 2 3 4 5 6 7; do ln -sfn /dev/null "$D/dev/nvidia$i"; done
cp "$here"/regions.d/*.json "$D/regions.d/"

# One starter at a time picks ports: the lock is held until slurmctld listens.
exec 9>/tmp/shardfit-test-cluster.lock
flock -w 60 9 || die "another start.sh holds /tmp/shardfit-test-cluster.lock"
listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if [ -z "$port" ]; then
  for port in $(seq 27800 40 29800); do
    free=1
    for o in $(seq 0 18); do if listens $((port + o)); then free=0; break; fi; done
    [ $free = 1 ] && break
  done
  [ $free = 1 ] || die "no free block of ports between 27800 and 29800; name one with --port"
fi

plugindir=
for d in /usr/lib/*/slurm-wlm /usr/lib64/slurm /usr/lib/slurm /usr/local/lib/slurm; do
  [ -e "$d/auth_munge.so" ] && plugindir=$d && break
done
[ -n "$plugindir" ] || die "Slurm's plugin folder was not found"

shardfit='# Plain Slurm: started without --build.' plugstack='# Plain Slurm.'
if [ -n "$build" ]; then
  so=$build/lib/slurm/spank_shardfit.so
  for f in "$so" "$build/lib/slurm/cli_filter_shardfit.so" "$build/bin/shardfit"; do [ -e "$f" ] || die "$f is not built"; done
  lua=$(cd "$here/../../plugin/lua" && pwd)
  plugindir=$build/lib/slurm:$plugindir
  shardfit='CliFilterPlugins=shardfit\nJobSubmitPlugins=lua\nJobCompType=jobcomp/lua'
  plugstack="required $so shardfit=$build/bin/shardfit conf=$D/shardfit.conf"
  cat > "$D/job_submit.lua" <<L
SHARDFIT_POLICY = "$D/state/policy.lua"
dofile("$lua/job_submit.lua")
L
  cat > "$D/jobcomp.lua" <<L
SHARDFIT_SPOOL = "$D/spool/jobs.ndjson"
SHARDFIT_CLUSTER = "shardfit"
dofile("$lua/jobcomp.lua")
L
fi
accounting='AccountingStorageType=accounting_storage/none'
[ $db = 1 ] && accounting="AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\nAccountingStoragePort=$((port + 18))\nAccountingStoragePass=$D/munge/munge.socket.2\nAccountingStorageTRES=gres/gpu\nAccountingStoreFlags=job_comment,job_env"

cpus=$(nproc)
memory=$(awk '/^MemTotal/ {print int($2 / 1024 * 0.9)}' /proc/meminfo)
arena=$(awk -v m="$memory" 'BEGIN {a = int(m / 1024 / 4); a = a < 1 ? 1 : a; print (a > 2) ? 2 : a}')  # of each of a node's two CPU ranks: small, so that sharding decides
fill() {
  sed -e "s|@SHARDFIT@|$shardfit|" -e "s|@PLUGSTACK@|$plugstack|" -e "s|@ACCOUNTING@|$accounting|" -e "s|@PLUGINDIR@|$plugindir|" \
      -e "s|@DIR@|$D|g" -e "s|@HOST@|$(hostname -s)|g" -e "s|@CPUS@|$cpus|g" -e "s|@MEMORY@|$memory|g" -e "s|@ARENA@|$arena|g" -e "s|@TODAY@|$(date -u +%F)|g" \
      -e "s|@PORT@|$port|g" $(for o in $(seq 1 16); do echo "-e s|@PORT+$o@|$((port + o))|g"; done)
}
for f in slurm gres plugstack shardfit; do fill < "$here/$f.conf.in" > "$D/$f.conf"; done
# Named, because autodetection ends slurmd where /sys/fs/cgroup is not mounted; nothing here uses cgroups.
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$D/cgroup.conf"

if ! alive munged "$D/run/munged.pid"; then
  [ -s "$D/munge/munge.key" ] || head -c 1024 /dev/urandom > "$D/munge/munge.key"
  chown -R root:root "$D/munge"; chmod 600 "$D/munge/munge.key"; chmod 755 "$D/munge"
  munged --force --key-file="$D/munge/munge.key" --socket="$D/munge/munge.socket.2" --pid-file="$D/run/munged.pid" \
         --log-file="$D/munge/munged.log" --seed-file="$D/munge/seed" --num-threads=2 2>"$D/log/munged.stderr" 9>&- ||
    die "munged did not start: $(tail -1 "$D/log/munged.stderr")"
fi
export SLURM_CONF=$D/slurm.conf
[ $db = 1 ] && "$here/db.sh" "$D" start $((port + 17)) $((port + 18)) 9>&-
[ -n "$build" ] && { SHARDFIT_CONF=$D/shardfit.conf "$build/bin/shardfit" policy publish >"$D/log/policy.log" 2>&1 ||
                     die "shardfit policy publish failed: $(tail -1 "$D/log/policy.log")"; }
timeout 30 slurmctld -f "$SLURM_CONF" 9>&- || die "slurmctld did not start: $(tail -3 "$D/log/slurmctld.log")"
for i in $(seq 100); do listens "$port" && break; sleep 0.1; done
listens "$port" || die "slurmctld does not listen on $port: $(tail -3 "$D/log/slurmctld.log")"
flock -u 9
nodes=$(timeout 10 scontrol show hostnames "$(sed -n 's/^NodeName=\([^ ]*\).*Port=.*/\1/p' "$SLURM_CONF" | paste -sd,)")
for n in $nodes; do
  mkdir -p "$D/d.$n"
  timeout 30 slurmd -N "$n" -f "$SLURM_CONF" 9>&- || die "slurmd $n did not start: $(tail -3 "$D/log/slurmd.$n.log")"
done
want=$(echo "$nodes" | wc -l)
for i in $(seq 150); do
  up=$(timeout 10 sinfo -h -N -o '%N %T' | sort -u | grep -cE ' (idle|mixed|allocated)$' || true)
  [ "$up" = "$want" ] && break
  sleep 0.2
done
timeout 10 sinfo -o '%12P %6D %14G %5c %8m %t %N'
[ "$up" = "$want" ] || die "only $up of $want nodes are up; see $D/log"
