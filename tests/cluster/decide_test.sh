#!/bin/bash
# decide_test.sh BUILD - the real `shardfit` behind sbatch: decisions over the cluster's offers, what is set, what is written, bad input.
. "$(dirname "$0")/lib.sh"
# A busy machine may need longer than a site would allow.
sed -i 's/"decide_timeout_seconds": 3/"decide_timeout_seconds": 15/' "$SHARDFIT_CONF"
mkdir -p llama tiny
cat > llama/config.json <<'J'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
 "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu"}
J
cat > tiny/config.json <<'J'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 576, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
 "intermediate_size": 1536, "vocab_size": 49152, "tie_word_embeddings": true, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "hidden_act": "silu"}
J
cat > llama.json <<'J'
{"model": "llama/", "sequence_length": 4096, "global_batch_sequences": 64, "precision": "bf16-mixed", "framework": {"name": "fsdp2"}, "duration": {"steps": 100}}
J
cat > tiny.json <<'J'
{"model": "tiny/", "sequence_length": 512, "global_batch_sequences": 8, "precision": "bf16-mixed", "framework": {"name": "fsdp2"}, "duration": {"steps": 20}, "pins": ["residency(EU|CH)"]}
J
chmod -R a+rX .

# --- the installation
run timeout 30 "$BUILD/bin/shardfit" doctor
equal "doctor is content with the test cluster" $rc 0
says "and says why" "$out" '^ok +plugstack' '^ok +cli_filter' '^ok +job_submit' '^ok +jobcomp' '^ok +policy .*current'

# --- show
run sbatch --hw=show --hw-job=llama.json --hw-pin='residency(EU|CH)' --wrap true
equal "show" $rc 0
says "names choice, rejected regions and flips" "$out" 'Choice' 'us-h100 .*salt.?lake.*residency\(EU\|CH\)' 'cpu-virginia' 'Rejected' 'What would change it'
equal "show writes nothing" "$(ls -d .shardfit 2>/dev/null)" ""
equal "and submits nothing" "$(jobs_known)" 0
run sbatch --hw=show --hw-job=llama.json --hw-pin='residency(JP)' --wrap true
equal "no offer in the region" $rc 3
says "says so" "$out" 'residency\(JP\)'
run sbatch --hw=auto --hw-job=llama.json --hw-deadline=10s --wrap true
equal "impossible deadline" $rc 3
says "says so" "$out" 'deadline'
run $as_user sbatch -A clinic --hw=show --hw-job=llama.json --wrap true
equal "policy's pins hold for the choice" $rc 0
says "of an account" "$out" 'zrh-a100 .*sovereign' 'us-h100 .*residency\(EU\|EEA\|CH\)'

# --- auto
cat > job.sh <<'J'
#!/bin/bash
#SBATCH -o job.out
echo "plan $SHARDFIT_PLAN"
sha256sum < "$SHARDFIT_PLAN"
for f in "$SHARDFIT_JOB" "$SHARDFIT_DEEPSPEED_CONFIG" "$SHARDFIT_FSDP_CONFIG" "$SHARDFIT_TORCHTITAN_ARGS" "${SHARDFIT_PLAN%/*}/decision.json" "${SHARDFIT_PLAN%/*}/torchtitan.toml"; do [ -s "$f" ] || echo "missing $f"; done
srun sh -c 'echo "gpus $CUDA_VISIBLE_DEVICES tasks $SLURM_NTASKS nodes $SLURM_NNODES"'
J
run $as_user sbatch -A lab --hw=auto --hw-job=tiny.json --hw-gpu=a100_sxm_80gb --hw-max-nodes=1 --parsable job.sh
equal "auto" $rc 0
id=$(id_of "$out")
check "runs to its end" wait_for 20 job_is "$id" COMPLETED
text=$(cat job.out)
folder=$(sed -n 's|^plan \(.*\)/plan.json$|\1|p' job.out)
sha=$(basename "$folder")
says "the plan lies in the working folder, named by its digest" "$folder" "^$D/jobs/\.shardfit/[0-9a-f]{64}$"
says "and holds those bytes" "$text" "^$sha "
equal "all files are there" "$(grep -c missing job.out)" 0
plan=$(cat "$folder/plan.json")
gpus=$(grep -oE '"gpus_per_node":[0-9]+' <<< "$plan" | cut -d: -f2)
equal "partition" "$(job_field "$id" Partition)" a100
says "GPUs as the plan has them" "$(job_field "$id" TresPerNode)" "gpu:a100:$gpus$"
says "one task a GPU" "$text" "tasks $gpus nodes 1"
equal "CPUs: the share of the node" "$(job_field "$id" CPUs/Task)" 22
limit=$(job_field "$id" TimeLimit)
says "a time limit above the prediction" "$limit" '^00:[0-9]{2}:00$'
check "not the partition's default" test "$limit" != 00:05:00
says "the comment says what was chosen" "$(timeout 10 scontrol -o show job "$id")" 'Comment=shardfit: .*a100'
says "pins and plan are recorded" "$(job_field "$id" AdminComment)" "^shardfit1;pins=residency\(EU\|CH\);plan=$sha$"
check "deepspeed.json is JSON" python3 -c "import json,sys; d=json.load(open('$folder/deepspeed.json')); assert d['train_micro_batch_size_per_gpu']>=1"
check "job.json can be decided again" timeout 30 "$BUILD/bin/shardfit" plan "$folder/job.json"

# --- drained nodes, closed partitions, limits of accounts
timeout 10 scontrol update nodename=a100-[1-2] state=drain reason=test
timeout 10 scontrol update partitionname=h100 state=down
run sbatch --hw=show --hw-job=tiny.json --hw-gpu=a100_sxm_80gb,h100_sxm_80gb --hw-pin='residency(EU)' --wrap true
equal "drained and down: nothing" $rc 3
says "says why" "$out" 'a100 .*drain' 'h100 .*not up'
timeout 10 scontrol update nodename=a100-[1-2] state=resume
timeout 10 scontrol update partitionname=h100 state=up
timeout 10 scontrol update partitionname=a100 allowaccounts=clinic
run $as_user sbatch -A lab --hw=show --hw-job=tiny.json --hw-gpu=a100_sxm_80gb --hw-pin='residency(EU)' --wrap true
equal "a partition of other accounts" $rc 3
says "says why" "$out" 'a100 .*account'
timeout 10 scontrol update partitionname=a100 allowaccounts=ALL

# --- bad input: one line, status 2, no job
before=$(jobs_known)
bad() {  # NAME JOB-FILE-CONTENT PATTERN... (content "" = as it is)
  local name=$1 content=$2; shift 2
  [ -n "$content" ] && echo "$content" > bad.json
  run sbatch --hw=auto --hw-job=bad.json --wrap true
  equal "$name: exit status" $rc 2
  equal "$name: one line" "$(wc -l <<< "$out")" 1
  says "$name" "$out" 'bad.json' "$@"
}
bad "missing model" '{"model": "nowhere/", "sequence_length": 512}' 'model' 'nowhere'
bad "unknown key" '{"model": "tiny/", "sequence_length": 512, "optimiser": {}}' 'optimiser' 'optimizer'
bad "negative size" '{"model": "tiny/", "sequence_length": -5}' 'sequence_length' '-5'
bad "not JSON" '{"model": ' 'bad.json'
rm bad.json; bad "no file" "" 'no such file'
run sbatch --hw=auto --hw-job=tiny.json --hw-gpu=h900 --wrap true; equal "unknown GPU" $rc 2; says "unknown GPU" "$out" 'h900'
run sbatch --hw=auto --hw-job=tiny.json --hw-pin='residency(XX' --wrap true; equal "bad pin" $rc 2; says "bad pin" "$out" 'hw-pin'
run sbatch --hw=auto --hw-job=tiny.json --hw-deadline=soon --wrap true; equal "bad deadline" $rc 2; says "bad deadline" "$out" 'hw-deadline' 'soon'
run sbatch --hw=auto --hw-job=tiny.json --hw-max-cost=5 --wrap true; equal "bad cost" $rc 2; says "bad cost" "$out" 'hw-max-cost'
run sbatch --hw=auto --hw-job=tiny.json --hw-max-nodes=0 --wrap true; equal "bad node count" $rc 2
equal "no job came of it" "$(jobs_known)" "$before"

# --- shardfit submit: the same without the plugin
: > "$D/plugstack.conf"
sed -i '/^CliFilterPlugins/d' "$SLURM_CONF"
timeout 20 scontrol reconfigure
run timeout 30 "$BUILD/bin/shardfit" doctor
equal "doctor misses the plugin" $rc 1
says "and says what to do" "$out" '^error +plugstack .*add: required'
cat > other.sh <<'J'
#!/bin/bash
#SBATCH --partition=us-h100 --gpus=h100:2
#SBATCH --hw-job=x.json
#SBATCH --comment=kept
echo "arguments $* sha $SHARDFIT_PLAN_SHA256"
J
run timeout 20 "$BUILD/bin/shardfit" submit --gpu a100_sxm_80gb --max-nodes 1 tiny.json other.sh -A lab -o other.out --parsable -- one two
equal "submit" $rc 0
id=$(id_of "$out")
check "runs to its end" wait_for 20 job_is "$id" COMPLETED
says "with arguments and plan" "$(cat other.out)" '^arguments one two sha [0-9a-f]{64}$'
equal "in the chosen partition" "$(job_field "$id" Partition)" a100
equal "the script's other options stay" "$(job_field "$id" Comment)" kept
equal "the job has the script's name" "$(job_field "$id" JobName)" other.sh
says "pins and plan are recorded without the plugin" "$(job_field "$id" AdminComment)" '^shardfit1;pins=residency\(EU\|CH\);plan=[0-9a-f]{64}$'
run timeout 20 "$BUILD/bin/shardfit" submit tiny.json other.sh -p cpu-berlin
equal "options that the decision sets are refused" $rc 2
run timeout 20 "$BUILD/bin/shardfit" submit --show tiny.json other.sh
says "show prints the command" "$out" 'sbatch --partition='
summary
