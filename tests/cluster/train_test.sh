#!/bin/bash
# train_test.sh BUILD - the whole road with a small model: ranks under srun on one node and on two, sbatch --hw=auto over CPU partitions inside
# a pin, the run's exports, the ledger and the report. Skipped where the runtime was not built (no LibTorch).
. "$(dirname "$0")/lib.sh"
[ -x "$BUILD/bin/shardfit-train" ] || { trap - EXIT; finish; skip "shardfit-train is not built"; }
export PATH=$BUILD/bin:$PATH SHARDFIT_TIMEOUT=60
cp -r "$here/../runtime/data/llama_tied" model
python3 - <<'P'
import json, random
random.seed(1)
with open("rows.jsonl", "w") as f:
    for _ in range(64):
        start = random.randrange(3, 200)
        f.write(json.dumps({"input_ids": [3 + (start + 7 * i) % 200 for i in range(64)]}) + "\n")
json.dump({"model": "model/", "method": "full", "data": {"train": "rows.jsonl", "format": "jsonl", "packing": False}, "duration": {"steps": 12},
           "sequence_length": 64, "global_batch_sequences": 8, "precision": "fp32", "framework": {"name": "shardfit"},
           "train": {"learning_rate": 3e-3, "warmup_steps": 2, "save_steps": 0}, "output": "out/"}, open("job.json", "w"))
json.dump({"gpu": "cpu", "gpus_per_node": 2, "device_memory_gib": 1, "sharding": {"stage": 3, "shard_degree": 2}, "micro_batch": 2,
           "gradient_accumulation": 2}, open("one.json", "w"))
json.dump({"gpu": "cpu", "gpus_per_node": 1, "nodes": 2, "device_memory_gib": 1, "sharding": {"stage": 3, "shard_degree": 2}, "micro_batch": 2,
           "gradient_accumulation": 2}, open("two.json", "w"))
P
losses() { python3 -c 'import json, sys; print([r["loss"] for r in map(json.loads, open(sys.argv[1])) if "loss" in r and "event" not in r])' "$1"; }

# Node names of this cluster are no host names: rank 0 must be found all the same.
out=$(timeout 120 srun -p cpu-berlin -N1 -n2 shardfit-train job.json --plan one.json --output one 2>&1); equal "two ranks on one node: $out" $? 0
out=$(timeout 120 srun -p cpu-berlin -N2 -n2 shardfit-train job.json --plan two.json --output two 2>&1); equal "two ranks on two nodes: $out" $? 0
equal "the same losses" "$(losses one/metrics.jsonl)" "$(losses two/metrics.jsonl)"

out=$(timeout 300 shardfit calibrate --quick --ranks 2 2>&1); equal "calibration: $out" $? 0
# Slurm's times are whole seconds: a job that ends in the second of its start has no duration to book.
printf '#!/bin/bash\nsrun shardfit-train "$SHARDFIT_JOB" || exit\nsleep 2\n' > train.sh
out=$(timeout 60 sbatch --hw=auto --hw-job=job.json --hw-pin='residency(EU|CH)' --hw-gpu=cpu train.sh 2>&1); equal "sbatch --hw=auto: $out" $? 0
says "Virginia is rejected by the pin" "$out" 'shardfit/cpu-virginia +potomac/virginia +residency\(EU\|CH\)'
id=$(id_of "$out")
check "the job completes" wait_for 150 job_is "$id" COMPLETED
says "inside the pin" "$(job_field "$id" Partition)" '^cpu-(berlin|zurich)$'
check "an export" timeout 60 shardfit-train export out exported
check "as safetensors" test -s exported/model.safetensors
check "booked" wait_for 20 timeout 20 shardfit ledger import
report=$(timeout 20 shardfit report "$id" --format json 2>&1)
says "the report" "$report" '"memory_peak"' '"runner_up"' 'elbe/(berlin|zurich)'
python3 - "$report" <<'P'
import json, sys
data = json.loads(sys.argv[1])
(row,) = data["records"] if isinstance(data, dict) and "records" in data else data if isinstance(data, list) else [data]
p, m = row["predicted"]["memory_peak"], row["measured"]["memory_peak"]
assert abs(p / m - 1) < 0.01, ("predicted against measured bytes", p, m)
assert row["measured"]["step"] > 0 and row["predicted"]["step"] > 0 and row["cost"]["amount"] > 0, row
P
equal "predicted memory is measured within 1 %, step and cost are booked" $? 0
first=$(timeout 60 shardfit-train eval model rows.jsonl --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])')
last=$(timeout 60 shardfit-train eval out rows.jsonl --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])')
check "training lowers the loss ($first to $last)" python3 -c "assert $last < 0.9 * $first"
summary
