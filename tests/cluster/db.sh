#!/bin/bash
# db.sh DIR start MARIADB_PORT SLURMDBD_PORT | db.sh DIR stop - MariaDB and slurmdbd under DIR; start.sh --db calls it once munged runs.
set -eu
D=$(cd "${1:?usage: db.sh DIR start MARIADB_PORT SLURMDBD_PORT | stop}" && pwd)
alive() { [ -s "$D/run/$1.pid" ] && [ "$(cat "/proc/$(cat "$D/run/$1.pid")/comm" 2>/dev/null)" = "$1" ]; }
die() { echo "db.sh: $*" >&2; exit 1; }
if [ "${2:-start}" = stop ]; then
  for p in slurmdbd mariadbd; do
    if alive $p; then kill "$(cat "$D/run/$p.pid")" || true; fi
    for _ in $(seq 200); do alive $p || break; sleep 0.1; done
    if alive $p; then die "still alive: $p $(cat "$D/run/$p.pid")"; fi
    rm -f "$D/run/$p.pid"
  done
  exit 0
fi
sql_port=$3 dbd_port=$4
for p in mariadbd slurmdbd; do command -v $p >/dev/null || die "$p is not installed (apt-get install mariadb-server slurmdbd)"; done
if [ ! -d "$D/mysql/mysql" ]; then
  mkdir -p "$D/mysql"; chown mysql:mysql "$D/mysql"
  timeout 120 mariadb-install-db --no-defaults --user=mysql --datadir="$D/mysql" --skip-test-db >"$D/log/mariadb-install.log" 2>&1 ||
    die "mariadb-install-db failed, see $D/log/mariadb-install.log"
fi
if ! alive mariadbd; then
  mariadbd --no-defaults --user=mysql --datadir="$D/mysql" --bind-address=127.0.0.1 --port="$sql_port" --socket="$D/mysql/sock" \
           --pid-file="$D/mysql/pid" --innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0 >"$D/log/mariadbd.log" 2>&1 &
  echo $! > "$D/run/mariadbd.pid"
fi
for i in $(seq 100); do
  timeout 5 mariadb-admin --no-defaults -S "$D/mysql/sock" ping >/dev/null 2>&1 && break
  sleep 0.2; [ "$i" -lt 10 ] || alive mariadbd || die "mariadbd did not start, see $D/log/mariadbd.log"
done
timeout 20 mariadb --no-defaults -S "$D/mysql/sock" -e "CREATE DATABASE IF NOT EXISTS slurm_acct;
  CREATE USER IF NOT EXISTS 'slurm'@'127.0.0.1' IDENTIFIED BY 'test'; CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED BY 'test';
  GRANT ALL ON slurm_acct.* TO 'slurm'@'127.0.0.1'; GRANT ALL ON slurm_acct.* TO 'slurm'@'localhost';"
cat > "$D/slurmdbd.conf" <<C
DbdHost=localhost
DbdPort=$dbd_port
AuthType=auth/munge
AuthInfo=socket=$D/munge/munge.socket.2
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort=$sql_port
StorageUser=slurm
StoragePass=test
StorageLoc=slurm_acct
LogFile=$D/log/slurmdbd.log
PidFile=$D/run/slurmdbd.pid
C
chmod 600 "$D/slurmdbd.conf"
alive slurmdbd || SLURM_CONF="$D/slurm.conf" timeout 30 slurmdbd || die "slurmdbd did not start, see $D/log/slurmdbd.log"
for _ in $(seq 150); do
  if (exec 3<>"/dev/tcp/127.0.0.1/$dbd_port") 2>/dev/null; then
    export SLURM_CONF="$D/slurm.conf"
    timeout 20 sacctmgr -i add cluster shardfit >/dev/null 2>&1 || true
    for a in default clinic lab; do timeout 20 sacctmgr -i add account $a >/dev/null 2>&1 || true; done
    for u in root nobody; do for a in default clinic lab; do timeout 20 sacctmgr -i add user $u account=$a >/dev/null 2>&1 || true; done; done
    exit 0
  fi
  sleep 0.2
done
die "slurmdbd did not start, see $D/log/slurmdbd.log"
