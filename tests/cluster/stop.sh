#!/bin/bash
# stop.sh DIR - stops what start.sh started under DIR, by its pid files, and waits until it is gone.
here=$(cd "$(dirname "$0")" && pwd)
D=${1:?usage: stop.sh DIR}
stop() {  # NAME PIDFILE...: only pids that still belong to a process of that name
  local name=$1 f p pids=; shift
  for f in "$@"; do
    [ -s "$f" ] || continue
    p=$(cat "$f")
    [ "$(cat "/proc/$p/comm" 2>/dev/null)" = "$name" ] && pids="$pids $p"
  done
  [ -z "$pids" ] && return 0
  kill $pids 2>/dev/null
  for _ in $(seq 100); do kill -0 $pids 2>/dev/null || return 0; sleep 0.1; done
  kill -KILL $pids 2>/dev/null
  for _ in $(seq 50); do kill -0 $pids 2>/dev/null || return 0; sleep 0.1; done
  echo "stop.sh: still alive: $name$pids" >&2
  return 1
}
rc=0
export SLURM_CONF=$D/slurm.conf
# slurmd leaves the steps of running jobs alive when it stops: cancel the jobs first.
if [ -s "$SLURM_CONF" ] && [ "$(cat "/proc/$(cat "$D/run/slurmctld.pid" 2>/dev/null)/comm" 2>/dev/null)" = slurmctld ]; then
  timeout 10 squeue -h -o %A | sort -u | timeout 20 xargs -r scancel 2>/dev/null
  for _ in $(seq 50); do [ -z "$(timeout 10 squeue -h)" ] && break; sleep 0.1; done
fi
stop slurmd "$D"/run/slurmd.*.pid || rc=1
stop slurmctld "$D/run/slurmctld.pid" || rc=1
if [ -s "$D/run/mariadbd.pid" ] || [ -s "$D/run/slurmdbd.pid" ]; then "$here/db.sh" "$D" stop || rc=1; fi
stop munged "$D/run/munged.pid" || rc=1
exit $rc
