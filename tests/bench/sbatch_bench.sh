#!/bin/bash
# sbatch_bench.sh BUILD [PAIRS] - what shardfit adds to sbatch on the test cluster. Build with the preset release, on a quiet machine.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?usage: sbatch_bench.sh BUILD [PAIRS]}" && pwd)
D=$(mktemp -d /tmp/shardfit-bench.XXXXXX)
trap '"$here/../cluster/stop.sh" "$D"; rm -rf "$D"' EXIT
"$here/../cluster/start.sh" "$D" --build "$build" >/dev/null
sed -e '/^PlugStackConfig/d' -e '/^CliFilterPlugins/d' "$D/slurm.conf" > "$D/plain.conf"
mkdir -p "$D/jobs/llama"; cd "$D/jobs"
cat > llama/config.json <<'J'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
 "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": false, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu"}
J
cat > job.json <<'J'
{"model": "llama/", "sequence_length": 4096, "global_batch_sequences": 64, "precision": "bf16-mixed", "framework": {"name": "fsdp2"}, "duration": {"steps": 1000}, "pins": ["residency(EU|CH)"]}
J
echo "load $(cut -d' ' -f1 /proc/loadavg) on $(nproc) cores, $("$build/bin/shardfit" --version)"
"$build/bench/sbatch_bench" "$D" "$D/jobs/job.json" ${2:-}
