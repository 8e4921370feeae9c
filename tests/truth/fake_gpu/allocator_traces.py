#!/usr/bin/env python3
"""Every allocation and free of real training steps, in order, with PyTorch's own peaks; run by fake_gpu.py.

    allocator_traces.py OUT.jsonl

`events`: an allocation is bytes x 8 + stream; -(2 n + 1) the request to free the n-th allocation, -(2 n + 2) its return to the pool
(later, where another stream was recorded on it). allocator_golden_test.cpp replays them.
"""
import json, os, sys
import torch
import torch.distributed.fsdp
import fakegpu
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer


def train(kind):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    fakegpu.rank0_of(4)
    torch.cuda.memory._record_memory_history(max_entries=10 ** 6, context=None)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(hidden_size=768, intermediate_size=2048, num_hidden_layers=4, num_attention_heads=12,
                                             num_key_value_heads=4, vocab_size=16000, use_cache=False))
    if kind == "fsdp2":
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for layer in model.model.layers:
            fully_shard(layer, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
    elif kind == "fsdp1":
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({LlamaDecoderLayer}), device_id=0, use_orig_params=True,
                                         mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    else:
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.zeros(2, 700, dtype=torch.long, device="cuda")
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    events, number, streams, made = [], {}, {}, 0
    for e in torch.cuda.memory._snapshot()["device_traces"][0]:
        if e["action"] == "alloc":
            events.append(e["size"] * 8 + streams.setdefault(e["stream"], len(streams)))
            number[e["addr"]] = made
            made += 1
        elif e["action"] in ("free_requested", "free_completed"):
            events.append(-(2 * number[e["addr"]] + (1 if e["action"] == "free_requested" else 2)))
    return {"steps": kind, "expandable": int("True" in os.environ["PYTORCH_CUDA_ALLOC_CONF"]), "torch": torch.__version__,
            "peaks": [torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()], "events": events}


def main():
    with open(sys.argv[1], "w") as out:
        for kind in ("ddp", "fsdp1", "fsdp2"):
            for expandable in (False, True):
                read, write = os.pipe()
                if os.fork() == 0:
                    os.environ.update(FAKEGPU_EVENT_LAG="300", PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{expandable}")
                    with os.fdopen(write, "w") as f:
                        f.write(json.dumps(train(kind)).replace(" ", "") + "\n")
                    os._exit(0)
                os.close(write)
                with os.fdopen(read) as f:
                    line = f.read()
                if not line:
                    sys.exit(f"{kind} failed")
                out.write(line)


main()
