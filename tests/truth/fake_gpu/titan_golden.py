#!/usr/bin/env python3
"""Golden peaks of torchtitan's own model and parallelize code (FSDP2, tensor parallelism, checkpointing, compile) as rank 0 of N.

    titan_golden.py OUT.jsonl TORCHTITAN.git [ID_PART]

Run by fake_gpu.py. The code of each commit comes out of the clone; what it imports from elsewhere (configuration, tokenizer, data)
is stood in for. Compiled cases need triton of the torch release in PACKAGES and a C compiler.
"""
import argparse, contextlib, importlib, inspect, io, json, os, subprocess, sys, tarfile, tempfile, types

STEPS = 3
MODELS = {
    "meta-llama__Meta-Llama-3-8B": dict(dim=4096, n_layers=32, n_heads=32, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=1024, rope_theta=500000),
    "meta-llama__Meta-Llama-3.1-70B": dict(dim=8192, n_layers=80, n_heads=64, n_kv_heads=8, ffn_dim_multiplier=1.3, multiple_of=4096, rope_theta=500000),
    "meta-llama__Llama-2-7b-hf": dict(dim=4096, n_layers=32, n_heads=32),
    "deepseek-ai__DeepSeek-V2-Lite": dict(dim=2048, inter_dim=10944, moe_inter_dim=1408, n_layers=27, n_dense_layers=1, n_heads=16, q_lora_rank=0, kv_lora_rank=512,
                                          qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, mscale=0.70, use_flex_attn=False),
}
EXPERTS = dict(num_experts=64, num_shared_experts=2, top_k=6, score_func="softmax", route_norm=False, score_before_experts=False)
VOCABULARY = {"meta-llama__Llama-2-7b-hf": 32000, "deepseek-ai__DeepSeek-V2-Lite": 102400}
LLAMA3, LLAMA70, LLAMA2, DEEPSEEK = MODELS

# commit, then (model, GPUs, tensor parallel, sequence, micro batch, checkpointing, compile, AdamW, reshard[, accumulation])
CASES = {
    "2.4": ("83c879f", [(LLAMA2, 8, 1, 2048, 8, "full", "none", "foreach", "default"), (LLAMA2, 8, 1, 2048, 8, "op", "none", "foreach", "default"),
                        (LLAMA2, 8, 1, 2048, 4, "2", "none", "foreach", "default"), (LLAMA2, 16, 1, 2048, 4, "none", "none", "foreach", "default")]),
    "2.6": ("5940dde", [(LLAMA3, 8, 1, 8192, 1, "op", "none", "foreach", "default"), (LLAMA3, 8, 1, 8192, 1, "op", "none", "fused", "never"),
                        (LLAMA3, 8, 1, 8192, 1, "op", "none", "foreach", "always"), (LLAMA3, 16, 1, 8192, 1, "full", "none", "fused", "default"),
                        (LLAMA3, 8, 1, 2048, 2, "none", "none", "fused", "default"), (LLAMA3, 8, 1, 2048, 4, "2", "none", "foreach", "default"),
                        (LLAMA3, 8, 2, 8192, 1, "op", "none", "fused", "default"), (LLAMA3, 16, 4, 8192, 2, "full", "none", "fused", "default"),
                        (LLAMA3, 8, 1, 8192, 1, "op", "block", "foreach", "default"), (LLAMA3, 8, 1, 8192, 1, "full", "block", "fused", "default"),
                        (LLAMA3, 8, 1, 2048, 2, "none", "block", "fused", "default"), (LLAMA3, 8, 2, 8192, 1, "op", "block", "fused", "default"),
                        (LLAMA70, 256, 8, 8192, 8, "full", "block", "foreach", "default"),
                        (LLAMA3, 16, 1, 8192, 1, "full", "none", "fused", "default", "2"), (LLAMA3, 16, 1, 8192, 1, "full", "none", "fused", "default", "2 without sync")]),
    "2.11": ("d9bdfbb", [(LLAMA3, 8, 1, 8192, 1, "op", "none", "fused", "default"), (LLAMA3, 64, 1, 8192, 1, "op", "none", "fused", "default"),
                         (LLAMA3, 8, 1, 8192, 1, "full", "none", "fused", "default"), (LLAMA3, 8, 1, 2048, 2, "2", "none", "fused", "default"),
                         (LLAMA3, 8, 1, 2048, 2, "none", "none", "foreach", "default"), (LLAMA3, 8, 2, 8192, 1, "op", "none", "fused", "default"),
                         (LLAMA3, 16, 4, 8192, 2, "none", "none", "fused", "default"), (LLAMA3, 8, 1, 8192, 1, "op", "block", "fused", "default"),
                         (LLAMA3, 8, 1, 8192, 1, "op", "block+loss", "fused", "default"), (LLAMA3, 8, 1, 8192, 1, "full", "block+loss", "fused", "default"),
                         (LLAMA3, 8, 1, 2048, 2, "none", "block+loss", "fused", "default"), (LLAMA3, 8, 2, 8192, 1, "op", "block", "fused", "default"),
                         (DEEPSEEK, 64, 1, 4096, 4, "full", "none", "fused", "default"), (DEEPSEEK, 64, 1, 4096, 1, "none", "none", "fused", "default"),
                         (DEEPSEEK, 64, 1, 4096, 1, "op", "none", "fused", "default")]),
}

# Triton asks the driver for what the stand-ins do not have.
DRIVER = """int cuCtxSetLimit(int l, unsigned long v) { return 0; }
int cuCtxGetLimit(unsigned long* v, int l) { *v = 0; return 0; }
int cuFuncSetCacheConfig(void* f, int c) { return 0; }
int cuModuleLoadData(void** m, const void* d) { *m = (void*)16; return 0; }
int cuModuleGetFunction(void** f, void* m, const char* n) { *f = (void*)16; return 0; }
int cuFuncGetAttribute(int* v, int a, void* f) { *v = a == 0 ? 1024 : a == 4 ? 32 : 0; return 0; }
int cuFuncSetAttribute(void* f, int a, int v) { return 0; }
int cuLaunchKernelEx(void* c, void* f, void** p, void** e) { return 0; }
int cuPointerGetAttribute(void* out, int a, unsigned long long p) { *(unsigned long long*)out = p; return 0; }
"""


class Loose:
    """Configuration: what a case does not set is off."""
    def __init__(self, **values):
        self.__dict__.update(values)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0 if name.endswith("degree") else False


class Anything(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def unpack(clone, commit, folder):
    package = "torchtrain" if commit == "83c879f" else "torchtitan"
    archive = subprocess.run(["git", "-C", clone, "archive", commit, package], capture_output=True, check=True).stdout
    tarfile.open(fileobj=io.BytesIO(archive)).extractall(folder, filter="data")
    types_of = "import torch\nTORCH_DTYPE_MAP = {'float32': torch.float32, 'bfloat16': torch.bfloat16}\n"
    anything = "def __getattr__(n):\n    if n.startswith('__'): raise AttributeError(n)\n    return type(n, (), {})\n"
    base = f"{folder}/{package}"
    if os.path.isdir(base + "/config"):
        for f in os.listdir(base + "/config"):
            if f.endswith(".py"):
                open(f"{base}/config/{f}", "w").write(types_of + anything)
    for f in ("config_manager.py",):
        if os.path.exists(f"{base}/{f}") and package == "torchtitan":
            open(f"{base}/{f}", "w").write(types_of + anything)
    for f in ("protocols/train_spec.py", "protocols/model.py"):
        if os.path.exists(f"{base}/{f}"):
            open(f"{base}/{f}", "w").write("from dataclasses import dataclass\n@dataclass\nclass BaseModelArgs:\n    _enforced: str = ''\nclass ModelProtocol: pass\n" + anything)
    if package == "torchtitan":
        for where, _, files in os.walk(base):          # packages whose __init__ imports the whole trainer
            if "__init__.py" in files and not where.endswith(("config", "distributed", "parallelisms", "models/moe")):
                open(where + "/__init__.py", "w").close()
    sys.path.insert(0, folder)
    return package


def first(*names):
    for n in names:
        try:
            return importlib.import_module(n)
        except ModuleNotFoundError as e:
            missing = e
    raise missing


def run(case, commit, clone):
    import torch
    import torch.distributed as dist
    model_name, gpus, tp, sequence, micro_batch, checkpointing, compiled, adamw, reshard, accumulation = (case + ("1",))[:10]
    package = unpack(clone, commit, tempfile.mkdtemp())
    for m in ("torchdata", "torchdata.stateful_dataloader", "datasets", "datasets.distributed", "tiktoken", "tiktoken.load", "torch.utils.tensorboard", "tyro", "tokenizers", "torchft"):
        try:
            importlib.import_module(m)
        except Exception:
            sys.modules[m] = Anything(m)
    import fakegpu
    fakegpu.rank0_of(gpus)
    from torch.distributed.device_mesh import init_device_mesh
    old = package == "torchtrain"
    experts = model_name == DEEPSEEK
    family = "deepseek_v3" if experts else "llama3"
    parallelize = first(f"torchtitan.models.{family}.infra.parallelize", "torchtitan.parallelisms.parallelize_llama") if not old else importlib.import_module("torchtrain.parallelisms.parallelize_llama")
    code = first(f"torchtitan.models.{family}.model.model", "torchtitan.models.llama.model") if not old else importlib.import_module("torchtrain.models.llama.model")
    Args = next(getattr(code, n) for n in ("DeepSeekV3ModelArgs", "TransformerModelArgs", "ModelArgs") if hasattr(code, n))
    args = Args(**MODELS[model_name])
    if experts:
        from torchtitan.models.moe import MoEArgs
        args.moe_args = MoEArgs(**EXPERTS)
    args.vocab_size, args.max_seq_len = VOCABULARY.get(model_name, 128256), sequence
    with contextlib.suppress(ImportError):            # cuDNN's attention is not stood in for
        import torchtitan.models.attention as attention
        from torch.nn.attention import SDPBackend
        attention.ScaledDotProductAttentionWrapper.sdpa_backends = [SDPBackend.EFFICIENT_ATTENTION if experts else SDPBackend.FLASH_ATTENTION]   # heads of two widths
    with torch.device("meta"):
        Model = code.DeepSeekV3Model if experts else code.Transformer
        model = Model.from_model_args(args) if hasattr(Model, "from_model_args") else Model(args)
    data = "dp" if old else "dp_shard_cp"
    mesh = init_device_mesh("cuda", (gpus // tp, tp), mesh_dim_names=(data, "tp")) if tp > 1 else init_device_mesh("cuda", (gpus,), mesh_dim_names=(data,))
    on = compiled != "none"
    config = Loose(
        training=Loose(compile=on, mixed_precision_param="bfloat16", mixed_precision_reduce="float32", fsdp_reshard_after_forward=reshard, seq_len=sequence, fp8_linear=""),
        parallelism=Loose(fsdp_reshard_after_forward=reshard), experimental=Loose(), job=Loose(dump_folder=tempfile.gettempdir()), float8=Loose(recipe_name=None),
        activation_checkpoint=Loose(mode={"none": "none", "full": "full"}.get(checkpointing, "selective"), selective_ac_option=checkpointing, determinism_check="default",
                                    per_op_sac_force_recompute_mm_shapes_by_fqns=[]),
        model=Loose(converters=[]), quantize=Loose(linear=Loose(float8=Loose(recipe_name=None))), compile=Loose(enable=on, components=["model", "loss"], backend="inductor"))
    dims = Loose(tp_enabled=tp > 1, dp_shard_enabled=True, dp_enabled=True, fsdp_enabled=True, loss_parallel_enabled=tp > 1, seq_len_divisor=2 * tp, tp=tp, cp=1, ep=1, etp=1, world_mesh=mesh)
    if on:
        import torch._inductor.config
        torch._inductor.config.triton.autotune_pointwise = False   # it would time kernels
    f = parallelize.parallelize_deepseekv3 if experts else parallelize.parallelize_llama
    model = (f(model, mesh, dims, config) if "world_mesh" in inspect.signature(f).parameters else f(model, dims, config)) or model
    model.to_empty(device="cuda")
    with torch.no_grad():
        model.init_weights(**({"buffer_device": None} if "buffer_device" in inspect.signature(model.init_weights).parameters else {}))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, **{adamw: True})

    def loss_function(pred, labels):
        return torch.nn.functional.cross_entropy(pred.flatten(0, 1).float(), labels.flatten(0, 1))
    if compiled == "block+loss":
        loss_function = torch.compile(loss_function)
    from torch.distributed.tensor.parallel import loss_parallel
    tokens = torch.zeros(micro_batch, sequence, dtype=torch.long, device="cuda")
    labels = torch.zeros_like(tokens)
    steps, pred = [], None
    for _ in range(STEPS):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        for batch in range(int(accumulation.split()[0])):
            if "without" in accumulation:
                model.set_requires_gradient_sync(batch + 1 == int(accumulation.split()[0]))
            with loss_parallel() if tp > 1 else contextlib.nullcontext():
                pred = model(tokens)
                loss = loss_function(pred, labels)
                if not old:
                    del pred
                loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        loss.item()
        steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])
    return {"kind": "peak", "by_step": steps, "allocated": max(s[0] for s in steps), "reserved": max(s[1] for s in steps)}


def line(case, commit, release, measured):
    import torch
    model, gpus, tp, sequence, micro_batch, checkpointing, compiled, adamw, reshard, accumulation = (case + ("1",))[:10]
    ac = {"op": "selective_op"}.get(checkpointing, {"every": int(checkpointing)} if checkpointing.isdigit() else checkpointing)
    plan = {"gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": gpus // 8, "sharding": {"stage": 3, "shard_degree": gpus // tp, "replicate_degree": 1},
            "micro_batch": micro_batch, "gradient_accumulation": int(accumulation.split()[0]), "activation_checkpointing": ac, "allocator": {"expandable_segments": True}}
    if "without" in accumulation:
        plan["accumulate_without_sync"] = True
    if reshard != "default":
        plan["sharding"]["reshard_after_forward"] = False if reshard == "never" else "always"
    if tp > 1:
        plan.update(tensor_parallel=tp, sequence_parallel=True)
    job = {"model": f"../configs/{model}.json", "method": "full", "sequence_length": sequence, "global_batch_sequences": micro_batch * int(accumulation.split()[0]) * gpus // tp, "precision": "bf16-mixed",
           "optimizer": {"name": "adamw", "implementation": adamw, "states": "fp32"}, "attention": "sdpa", "loss": "plain", "compile": compiled,
           "framework": {"name": "fsdp2", "version": release, "trainer": "torchtitan", "trainer_version": commit}, "software": {"torch": torch.__version__.split("+")[0]}}
    name = f"titan-{commit}/{'deepseek' if model == DEEPSEEK else next(p for p in model.split('-') if p[-1] in 'Bb' and p[:-1].isdigit())}/{gpus}x{tp}/{micro_batch}x{sequence}/{checkpointing}/{compiled}/{adamw}/{reshard}" + (f"/accumulate {accumulation}" if accumulation != "1" else "")
    return {"id": name, "job": job, "plan": plan, "measured": measured, "versions": {"torch": torch.__version__}, "made_by": "titan_golden.py"}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("out")
    p.add_argument("clone")
    p.add_argument("part", nargs="?", default="")
    p.add_argument("--one", type=int, default=-1)
    a = p.parse_args()
    import torch
    release = ".".join(torch.__version__.split(".")[:2])
    commit, cases = CASES[release]
    if a.one >= 0:
        print("RESULT" + json.dumps(run(cases[a.one], commit, a.clone)), flush=True)
        os._exit(0)
    with tempfile.TemporaryDirectory() as folder, open(a.out, "a") as out:
        open(folder + "/driver.c", "w").write(DRIVER)
        subprocess.run(["cc", "-shared", "-fPIC", folder + "/driver.c", "-o", folder + "/driver.so"], check=True)
        here = next(d for d in os.environ["LD_LIBRARY_PATH"].split(":") if d)
        env = dict(os.environ, LD_PRELOAD=folder + "/driver.so", TRITON_LIBCUDA_PATH=here, TORCHINDUCTOR_COMPILE_THREADS="1", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
        for i, case in enumerate(cases):
            id = line(case, commit, release, {})["id"]
            if a.part not in id:
                continue
            done = subprocess.run([sys.executable, __file__, a.out, a.clone, "--one", str(i)], env=env, capture_output=True, text=True)
            result = [l for l in done.stdout.splitlines() if l.startswith("RESULT")]
            if not result:
                sys.exit(f"{id}: {done.stderr[-2000:]}")
            out.write(json.dumps(line(case, commit, release, json.loads(result[0][6:]))) + "\n")
            out.flush()
            print(id, flush=True)


main()
