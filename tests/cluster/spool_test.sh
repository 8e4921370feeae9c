#!/bin/bash
# spool_test.sh BUILD - one JSON line for every attempt of a job: ends of all kinds, requeues, arrays, and a spool that cannot be written.
. "$(dirname "$0")/lib.sh"
spool=$D/spool/jobs.ndjson
value() { python3 -c '
import json, sys
rows = [json.loads(l) for l in open(sys.argv[1])]
rows = [r for r in rows if r["job_id"] == int(sys.argv[2])]
print(" ".join(str(r[sys.argv[3]]) for r in rows))' "$spool" "$1" "$2"; }
attempts() { grep -c "\"job_id\":$1," "$spool" 2>/dev/null || true; }
submit() { out=$(timeout 20 sbatch --parsable -o /dev/null "$@" 2>&1) || fail "sbatch $*: $out"; id=$(id_of "$out"); }
recorded() { [ "$(attempts "$1")" = "$2" ]; }

submit -p a100 --gpus-per-node=a100:2 -A lab --job-name='od"d\name' --wrap 'true'
check "an end" wait_for 15 recorded "$id" 1
equal "state" "$(($(value "$id" job_state) % 256))" 3
equal "GPUs" "$(value "$id" gres_used)" gpu:a100:2
equal "account, name, partition" "$(value "$id" account) $(value "$id" name) $(value "$id" partition)" 'lab od"d\name a100'
equal "restart" "$(value "$id" restart_cnt)" 0
check "times" test "$(value "$id" end_time)" -ge "$(value "$id" start_time)"
equal "version and cluster" "$(grep -c '^{"v":1,"cluster":"shardfit",' "$spool")" 1
first=$id

submit -p cpu-berlin --wrap 'exit 3'
check "a failure" wait_for 15 recorded "$id" 1
equal "its state" "$(($(value "$id" job_state) % 256))" 5

submit -p cpu-zurich --requeue --wrap 'sleep 60'
check "starts" wait_for 15 job_is "$id" RUNNING
timeout 10 scontrol requeue "$id"
check "a requeue is an attempt" wait_for 15 recorded "$id" 1
# Slurm holds a requeued job back for two minutes, once its nodes are free again.
again() { timeout 10 scontrol update jobid="$id" starttime=now; job_is "$id" RUNNING; }
check "the next starts" wait_for 180 again
timeout 10 scancel "$id"
check "and is another" wait_for 15 recorded "$id" 2
starts=$(value "$id" start_time)
check "told apart by their starts ($starts)" test "${starts% *}" != "${starts#* }"
equal "restart counts" "$(value "$id" restart_cnt)" "0 1"

submit -p cpu-berlin --array=1-2 --wrap true
wait_for 15 bash -c "[ \$(grep -c '\"array_job_id\":$id,' '$spool') = 2 ]" && ok || fail "array tasks have a line each"

submit -p us-h100 --hold --wrap true
timeout 10 scancel "$id"
check "cancelled while pending" wait_for 15 recorded "$id" 1
equal "has no nodes" "$(value "$id" nodes)" None
check "every line is JSON" python3 -c "import json; [json.loads(l) for l in open('$spool')]"

mv "$spool" "$spool.kept"; mkdir "$spool"
submit -p cpu-berlin --wrap true
check "a spool that cannot be written stops no job" wait_for 15 job_is "$id" COMPLETED
check "slurmctld lives" timeout 10 scontrol ping
says "and says what it missed" "$(grep shardfit "$D/log/slurmctld.log" | tail -1)" "job $id was not recorded"
summary
