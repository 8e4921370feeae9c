#!/usr/bin/env python3
"""Golden peaks of FSDP1 and FSDP2 with units other than blocks (classes, sizes) around transformers' Llama, as rank 0 of 64.

    wrap_golden.py OUT.jsonl [PART_OF_ID]

Run by fake_gpu.py. The peak is that of the whole run, wrapping included.
"""
import functools, json, os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
MODEL, RANKS, SEQUENCE, MICRO_BATCH = "../configs/meta-llama__Meta-Llama-3-8B.json", 64, 512, 2
WRAPS = [(e, w, c) for w in ("LlamaDecoderLayer", "LlamaAttention,LlamaMLP", "LlamaAttention,LlamaMLP,LlamaDecoderLayer", "LlamaMLP", "Linear", "100000000", "1000000")
         for e in ("fsdp1", "fsdp2") for c in ("none", "full") if not (w.isdigit() and e == "fsdp2")]   # FSDP2 has no wrapping by size


def run(engine, wrap, checkpointing):
    import torch, fakegpu
    import transformers.models.llama.modeling_llama as llama
    from transformers import AutoConfig, AutoModelForCausalLM
    fakegpu.rank0_of(RANKS)
    config = AutoConfig.for_model(**json.load(open(os.path.join(HERE, MODEL))))
    config.use_cache = False
    torch.cuda.init()
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=torch.float32, attn_implementation="sdpa")
    if checkpointing == "full":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    classes = () if wrap.isdigit() else tuple(getattr(llama, c, None) or getattr(torch.nn, c) for c in wrap.split(","))
    if engine == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        formats = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        for module in reversed(list(model.modules())[1:]):
            if isinstance(module, classes):
                fully_shard(module, mp_policy=formats, reshard_after_forward=True)
        fully_shard(model, mp_policy=formats)
        model.to_empty(device="cuda")
    else:
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy
        policy = functools.partial(size_based_auto_wrap_policy, min_num_params=int(wrap)) if wrap.isdigit() else ModuleWrapPolicy(classes)
        model = FullyShardedDataParallel(model, auto_wrap_policy=policy, device_id=0, mixed_precision=MixedPrecision(*[torch.bfloat16] * 3), use_orig_params=True,
                                         sync_module_states=True, param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    ids = torch.zeros(MICRO_BATCH, SEQUENCE, dtype=torch.long, device="cuda")
    mask = torch.ones_like(ids)
    steps = []
    for step in range(3):
        if step:
            torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        optimizer.step()
        steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    return {"kind": "peak", "by_step": steps, "allocated": max(s[0] for s in steps), "reserved": max(s[1] for s in steps)}


def line(engine, wrap, checkpointing, measured):
    import torch, transformers
    job = {"model": MODEL, "method": "full", "sequence_length": SEQUENCE,
           "precision": {"parameters": "fp32", "gradients": "fp32", "compute": "bf16", "reduce": "bf16" if engine == "fsdp1" else "fp32"},
           "optimizer": {"name": "adamw", "implementation": "foreach"}, "attention": "sdpa", "loss": "plain",
           "framework": {"name": engine, "trainer": "transformers", "trainer_version": transformers.__version__}, "software": {"torch": torch.__version__.split("+")[0]}}
    plan = {"gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": RANKS // 8, "sharding": {"stage": 3, "shard_degree": RANKS, "reshard_after_forward": "always"},
            "micro_batch": MICRO_BATCH, "activation_checkpointing": {"kind": "full", "reentrant": False} if checkpointing == "full" else "none"}
    if wrap.isdigit():
        plan["fsdp"] = {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": int(wrap)}
    else:
        plan["schedule"] = {"unit": wrap.split(",")}
    return {"id": f"wrap/{engine}/{wrap}/{checkpointing}", "job": job, "plan": plan, "measured": measured,
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__}, "made_by": "wrap_golden.py"}


def main():
    if sys.argv[1] == "--one":
        print("RESULT" + json.dumps(line(*sys.argv[2:], run(*sys.argv[2:]))), flush=True)
        os._exit(0)
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    with open(sys.argv[1], "w") as out:
        for case in WRAPS:
            if part not in "wrap/" + "/".join(case):
                continue
            done = subprocess.run([sys.executable, __file__, "--one", *case], capture_output=True, text=True)
            result = [l for l in done.stdout.splitlines() if l.startswith("RESULT")]
            if not result:
                sys.exit(f"{case}: {done.stderr[-2000:]}")
            out.write(result[0][6:] + "\n")
            out.flush()


main()
