#!/usr/bin/env python3
"""Runs DeepSpeed's own code as one rank of N over a Llama and prints what torch's allocators counted.

    run_deepspeed.py CASE.json [...]        a case: {"model": {...}, "world": N, "micro_batch": b, "sequence": s, "checkpointing": false|true|"reentrant", "zero_init": bool, "lora": bool,
                                            "config": {DeepSpeed's configuration}, "optimizer": "fused|foreach", "rank": r}

It needs CUDA builds of torch and transformers and either GPUs that are never asked to compute anything that matters, or a CUDA
runtime whose kernels do nothing (collectives go to torch's "fake" process group). Three optimizer steps; the peaks are those of the
second and third, after the states exist and the trace is complete.
"""
import json
import os
import sys

import torch
import torch.distributed as dist


def run(case):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    world = case["world"]
    rank = case.get("rank", 0)
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    import deepspeed
    deepspeed.init_distributed("nccl", auto_mpi_discovery=False)
    from transformers import LlamaConfig, LlamaForCausalLM
    m = case["model"]
    config = LlamaConfig(hidden_size=m["hidden"], intermediate_size=m["ffn"], num_hidden_layers=m["layers"], num_attention_heads=m["heads"],
                         num_key_value_heads=m.get("kv_heads", m["heads"]), vocab_size=m["vocabulary"], max_position_embeddings=4096,
                         tie_word_embeddings=m.get("tied", False), use_cache=False, attn_implementation="sdpa")
    ds = dict(case["config"])
    torch.set_default_dtype(torch.bfloat16)
    if case.get("zero_init"):     # as from_pretrained does for the Trainer (transformers/modeling_utils.py get_init_context)
        with deepspeed.zero.Init(config_dict_or_path=dict(ds, train_micro_batch_size_per_gpu=case["micro_batch"], bf16={"enabled": True})):
            model = LlamaForCausalLM(config)
    else:
        with torch.device("cuda"):
            model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    if case.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": case["checkpointing"] == "reentrant"})
    if case.get("lora"):
        import peft
        model.enable_input_require_grads()
        with deepspeed.zero.Init(config_dict_or_path=dict(ds, train_micro_batch_size_per_gpu=case["micro_batch"], bf16={"enabled": True})):
            model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"), autocast_adapter_dtype=False)
    model.train()
    accumulation = ds.get("gradient_accumulation_steps", 1)
    ds.update(train_micro_batch_size_per_gpu=case["micro_batch"], bf16=dict({"enabled": True}, **ds.get("bf16", {})), zero_allow_untested_optimizer=True,
              steps_per_print=10**9)
    offload = ds.get("zero_optimization", {}).get("offload_optimizer", {}).get("device", "none") != "none"
    if offload:      # torch's AdamW on the host: DeepSpeed's own needs a compiler, and keeps the same states
        ds["zero_force_ds_cpu_optimizer"] = False
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, foreach=False)
    else:
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=case.get("optimizer", "fused") == "fused", foreach=case.get("optimizer") == "foreach")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=ds)
    torch.cuda.synchronize()
    out = {"name": case["name"], "deepspeed": deepspeed.__version__, "torch": torch.__version__, "after_init": torch.cuda.memory_allocated(), "steps": []}
    for step in range(case.get("steps", 3)):
        torch.cuda.reset_peak_memory_stats()
        marks = {}
        for micro in range(accumulation):
            ids = torch.zeros((case["micro_batch"], case["sequence"]), dtype=torch.long, device="cuda")
            loss = engine(input_ids=ids, labels=ids).loss
            torch.cuda.synchronize()
            marks["forward"] = torch.cuda.max_memory_allocated()
            engine.backward(loss)
            del loss
            torch.cuda.synchronize()
            marks["backward"] = torch.cuda.max_memory_allocated()
            if micro + 1 < accumulation:
                engine.step()
        torch.cuda.reset_peak_memory_stats()
        engine.step()
        torch.cuda.synchronize()
        marks["step"] = torch.cuda.max_memory_allocated()
        marks["after"] = torch.cuda.memory_allocated()
        marks["reserved"] = torch.cuda.memory_reserved()
        out["steps"].append(marks)
    last = out["steps"][-1]
    out["allocated_peak"] = max(max(s[k] for k in ("forward", "backward", "step")) for s in out["steps"])
    out["reserved_peak"] = last["reserved"]
    out["host"], out["host_pinned"] = host_bytes()
    return out


def host_bytes():
    """Bytes of all tensors that live in host memory, and of those that are page-locked; each storage once."""
    import gc
    seen, host, pinned = set(), 0, 0
    for o in gc.get_objects():
        try:
            if not isinstance(o, torch.Tensor):
                continue
            for t in (o, o.grad if o.is_leaf else None, getattr(o, "ds_tensor", None), getattr(o, "ds_secondary_tensor", None)):
                if t is None or t.device.type != "cpu":
                    continue
                s = t.untyped_storage()
                if s.data_ptr() in seen or s.nbytes() == 0:
                    continue
                seen.add(s.data_ptr())
                host += s.nbytes()
                pinned += s.nbytes() if t.is_pinned() else 0
        except Exception:
            continue
    return host, pinned


if __name__ == "__main__":
    for line in open(sys.argv[1]):
        case = json.loads(line)
        if len(sys.argv) > 2 and case["name"] not in sys.argv[2:]:
            continue
        pid = os.fork()
        if pid == 0:
            sys.stdout.flush()
            result = run(case)
            print("RESULT", json.dumps(result), flush=True)
            os._exit(0)
        os.waitpid(pid, 0)
