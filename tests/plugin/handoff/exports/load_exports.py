"""Has the engines' own parsers read every text of goldens.json, and checks that the plan's values arrive.

    pip install --target LIB torch==2.11.0 transformers deepspeed==0.19.6 accelerate==1.15.0 tyro spmd_types==0.2.3 torchdata
    pip install --no-deps --target TT3 torchtitan==0.3.0;  pip install --no-deps --target TT2 torchtitan==0.2.2
    PYTHONPATH=LIB python3 load_exports.py goldens.json TT3 TT2

No GPU. What torchtitan imports beside its configuration (triton, datasets, tensorboard, ...) and is not installed is
replaced by empty modules: classes and parser of the configuration are its own. Exit status 1 with a line for each value
that did not arrive, each key that the engine does not know, and each combination that it refuses.
"""
import importlib.abc
import importlib.machinery
import json
import os
import subprocess
import sys
import tempfile
import types
from unittest.mock import MagicMock

HERE = os.path.dirname(os.path.abspath(__file__))
BASE_JOB = {"precision": "bf16-mixed", "optimizer": {"name": "adamw"}, "framework": {}, "compile": "none"}
BASE_PLAN = {
    "gpu": "h100_sxm_80gb", "gpus_per_node": 8, "nodes": 2, "micro_batch": 2, "gradient_accumulation": 2,
    "sharding": {"stage": 3, "shard_degree": 16, "replicate_degree": 1, "reshard_after_forward": True},
    "tensor_parallel": 1, "context_parallel": 1, "pipeline_parallel": {"degree": 1}, "activation_checkpointing": "full",
    "offload": {"parameters": "none", "optimizer": "none", "activations": "none"}, "schedule": {},
    "checkpoint_load": "sharded"}
wrong = []


def merge(base, changes):
    out = json.loads(json.dumps(base))
    for key, value in changes.items():
        out[key] = merge(out[key], value) if isinstance(value, dict) and isinstance(out.get(key), dict) else value
    return out


def expect(name, what, got, wanted):
    if got != wanted:
        wrong.append(f"{name}: {what} is {got!r}, not {wanted!r}")


def check_deepspeed(name, text, job, plan):
    from deepspeed.runtime.config import DeepSpeedConfig

    ranks = plan["sharding"]["shard_degree"] * plan["sharding"]["replicate_degree"]
    tensor = plan["tensor_parallel"]

    class Grid:  # DeepSpeedConfig asks for the number of data-parallel ranks
        def get_data_parallel_world_size(self):
            return ranks

        def get_world_size(self):
            return ranks * tensor

    import deepspeed.runtime.config as module

    module.dist.get_rank = lambda *_: 0
    module.dist.get_world_size = lambda *_: ranks * tensor
    raw = json.loads(text)
    trainer = job["framework"].get("trainer") == "transformers"
    if trainer:  # its Trainer fills "auto" in before DeepSpeed reads the file
        raw["optimizer"]["params"] = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
    config = DeepSpeedConfig(raw, mpu=Grid())
    z, s, o = config.zero_config, plan["sharding"], plan["offload"]
    expect(name, "micro batch", config.train_micro_batch_size_per_gpu, plan["micro_batch"])
    expect(name, "accumulation", config.gradient_accumulation_steps, plan["gradient_accumulation"])
    expect(name, "batch", config.train_batch_size, plan["micro_batch"] * plan["gradient_accumulation"] * ranks)
    expect(name, "clipping", config.gradient_clipping, 1.0)
    expect(name, "stage", int(z.stage), s["stage"])
    bf16 = job["precision"] in ("bf16", "bf16-mixed") or isinstance(job["precision"], dict)
    expect(name, "bf16", config.bfloat16_config.enabled, bf16)
    expect(name, "fp16", config.float16_config.enabled, job["precision"] == "fp16-mixed")
    expect(name, "no master", config.bfloat16_config.bf16_master_weights_and_grads, job["precision"] == "bf16")

    def device(offload):
        return "none" if offload is None else str(getattr(offload.device, "value", offload.device))

    if s["stage"] > 0:
        expect(name, "optimizer", device(z.offload_optimizer), o["optimizer"])
    if s["stage"] == 3:
        expect(name, "parameters", device(z.offload_param), o["parameters"])
    if o.get("optimizer_fraction"):
        expect(name, "ratio", z.offload_optimizer.ratio, o["optimizer_fraction"])
    if "buffers" in o:
        expect(name, "buffers", (z.offload_param.buffer_count, z.offload_optimizer.buffer_count), (o["buffers"],) * 2)
    schedule = plan["schedule"]
    if "keep_resident_below" in schedule:
        expect(name, "persistence", z.param_persistence_threshold, schedule["keep_resident_below"])
    if "prefetch_bytes" in schedule:
        expect(name, "prefetch", z.prefetch_bucket_size, schedule["prefetch_bytes"] // 2)
    if isinstance(s["reshard_after_forward"], int) and not isinstance(s["reshard_after_forward"], bool):
        expect(name, "hpz", z.zero_hpz_partition_size, s["reshard_after_forward"])
    if s["replicate_degree"] > 1 and s["stage"] == 3:
        expect(name, "mics", z.mics_shard_size, s["shard_degree"])
    expect(name, "cpu checkpointing", config.activation_checkpointing_config.cpu_checkpointing,
           o["activations"] == "cpu")
    known = {"adamw": "adamw", "adam": "adam", "lion": "lion", "muon": "muon"}.get(job["optimizer"]["name"])
    expect(name, "optimizer's name", config.optimizer_name, known)
    # Keys that nothing reads: pydantic models refuse theirs; at the top level they must be among DeepSpeed's constants.
    import deepspeed.runtime.constants as c
    words = {v for m in (c, sys.modules["deepspeed.runtime.zero.config"]) for v in vars(m).values() if isinstance(v, str)}
    words |= {"zero_optimization", "activation_checkpointing", "data_types", "tensor_parallel", "bf16", "fp16"}
    for key in raw:
        if key not in words:
            wrong.append(f"{name}: DeepSpeed knows no {key!r}")


def check_accelerate(name, text, job, plan):
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import launch_command_parser, _validate_launch_command
    from accelerate.utils.launch import prepare_multi_gpu_env
    from accelerate.utils import FullyShardedDataParallelPlugin
    import torch

    torch.cuda.is_available = lambda: True  # the plugin of FSDP 1 names the current device
    torch.cuda.current_device = lambda: 0

    with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as f:
        f.write(text)
    config = load_config_from_file(f.name)
    args = launch_command_parser().parse_args(["--config_file", f.name, "script.py"])
    args, _, _ = _validate_launch_command(args)
    os.unlink(f.name)
    gpus = plan["gpus_per_node"] * plan["nodes"]
    s = plan["sharding"]
    expect(name, "processes", config.num_processes, gpus)
    expect(name, "machines", config.num_machines, plan["nodes"])
    mixed = {"bf16-mixed": "bf16", "fp16-mixed": "fp16"}.get(job["precision"], "no")
    if isinstance(job["precision"], dict):
        mixed = "bf16"
    expect(name, "mixed_precision", str(config.mixed_precision), mixed)
    kind = getattr(config.distributed_type, "value", config.distributed_type)
    if s["stage"] == 0:
        expect(name, "kind", kind, "MULTI_GPU")
        return
    expect(name, "kind", kind, "FSDP")
    # As a process of `accelerate launch` finds it: by variables.
    for key in [k for k in os.environ if k.startswith(("FSDP_", "PARALLELISM_CONFIG_"))]:
        del os.environ[key]
    env = prepare_multi_gpu_env(args)
    os.environ.update({k: v for k, v in env.items() if k.startswith(("FSDP_", "ACCELERATE_", "PARALLELISM_"))})
    version = 1 if job["framework"].get("name") == "fsdp1" else 2
    plugin = FullyShardedDataParallelPlugin()
    expect(name, "version", plugin.fsdp_version, version)
    keeps = s["stage"] < 3 or s["reshard_after_forward"] is False
    if version == 1:
        hybrid = s["replicate_degree"] > 1
        strategy = ("_HYBRID_SHARD_ZERO2" if keeps else "HYBRID_SHARD") if hybrid else \
            ("SHARD_GRAD_OP" if keeps else "FULL_SHARD")
        expect(name, "strategy", plugin.sharding_strategy.name, strategy)
        expect(name, "limits", plugin.sync_module_states, True)
    else:
        expect(name, "reshard", plugin.reshard_after_forward, not keeps)
    expect(name, "offload", bool(getattr(plugin.cpu_offload, "offload_params", plugin.cpu_offload and
                                         type(plugin.cpu_offload).__name__ == "CPUOffloadPolicy")),
           plan["offload"]["parameters"] == "cpu")
    expect(name, "checkpointing", plugin.activation_checkpointing, plan["activation_checkpointing"] != "none")
    expect(name, "loading", plugin.cpu_ram_efficient_loading, plan["checkpoint_load"] == "sharded")
    if "unit" in plan["schedule"]:
        expect(name, "wrapped", plugin.transformer_cls_names_to_wrap, plan["schedule"]["unit"])
    sizes = (s["replicate_degree"], s["shard_degree"], plan["tensor_parallel"], plan["context_parallel"])
    if version == 2 and (sizes[0], *sizes[2:]) != (1, 1, 1):
        from accelerate.parallelism_config import ParallelismConfig

        p = ParallelismConfig()
        expect(name, "grid", (p.dp_replicate_size, p.dp_shard_size, p.tp_size, p.cp_size), sizes)
    # Keys that launch passes on to no variable would be lost in silence.
    passed = {k.lower() for k in env}
    for key in config.fsdp_config:
        if key not in passed and key != "fsdp_transformer_layer_cls_to_wrap":  # FSDP_TRANSFORMER_CLS_TO_WRAP, checked above
            wrong.append(f"{name}: accelerate passes {key!r} on to nobody")


class Empty(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        absent = ("triton", "datasets", "PIL", "tensorboard", "wandb", "torch_checkpointing", "torchvision", "torch_remat",
                  "av", "deep_ep", "helion", "tokenizers", "google", "fsspec", "tomli")
        if name.split(".")[0] in absent or name.startswith("torch.utils.tensorboard"):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        class Module(types.ModuleType):
            def __getattr__(self, key):
                if key == "__version__":
                    return "3.0.0"
                if key.startswith("__"):
                    raise AttributeError(key)
                return MagicMock(name=key)

        return Module(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def without_kernels():
    import torch
    import torch.distributed.fsdp
    import torch.distributed.fsdp._fully_shard
    import torch.distributed.pipelining.schedules
    import torch.distributed.tensor

    torch.compile = lambda f=None, **_: f if f is not None else (lambda g: g)

    def later(key):  # names of newer torch than is installed
        if key.startswith("__"):
            raise AttributeError(key)
        return MagicMock(name=key)

    for module in (torch.distributed.fsdp, torch.distributed.fsdp._fully_shard, torch.distributed.tensor,
                   torch.distributed.pipelining.schedules):
        module.__getattr__ = later
    sys.meta_path.insert(0, Empty())


def common_torchtitan(name, c, job, plan):
    t, p, s = c.training, c.parallelism, plan["sharding"]
    staged = plan["pipeline_parallel"]["degree"] > 1
    ranks = s["shard_degree"] * s["replicate_degree"]
    expect(name, "local batch", t.local_batch_size,
           plan["micro_batch"] * (plan["gradient_accumulation"] if staged else 1))
    expect(name, "global batch", t.global_batch_size, plan["micro_batch"] * plan["gradient_accumulation"] * ranks)
    expect(name, "sequence", t.seq_len, 4096)
    expect(name, "steps", t.steps, 100)
    expect(name, "param", t.mixed_precision_param, "float32" if job["precision"] == "fp32" else "bfloat16")
    expect(name, "dtype", t.dtype, "bfloat16" if job["precision"] == "bf16" else "float32")
    expect(name, "offload", t.enable_cpu_offload, plan["offload"]["parameters"] == "cpu")
    expect(name, "grid", (p.data_parallel_replicate_degree, p.data_parallel_shard_degree, p.tensor_parallel_degree,
                          p.context_parallel_degree, p.pipeline_parallel_degree),
           (s["replicate_degree"], s["shard_degree"], plan["tensor_parallel"], plan["context_parallel"],
            plan["pipeline_parallel"]["degree"]))
    reshard = {True: "default", False: "never", "always": "always"}[s["reshard_after_forward"]]
    expect(name, "reshard", p.fsdp_reshard_after_forward, reshard)
    if staged:
        expect(name, "schedule", p.pipeline_parallel_schedule, "Interleaved1F1B")
        expect(name, "pipeline micro batch", p.pipeline_parallel_microbatch_size, plan["micro_batch"])
    words = {"single": "for-loop", "foreach": "foreach"}
    expect(name, "implementation", c.optimizer.implementation, words.get(job["optimizer"].get("implementation"), "fused"))
    expect(name, "warm-up", c.lr_scheduler.warmup_steps, 10)
    expect(name, "compile", c.compile.enable, job["compile"] != "none")


def check_args(name, text, job, plan):
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
    import torchtitan.models.llama3.config_registry  # noqa: F401

    c = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel"] + text.split())
    common_torchtitan(name, c, job, plan)
    group = c.optimizer.param_groups[0]
    expect(name, "optimizer", group.optimizer_name, "Adam" if job["optimizer"]["name"] == "adam" else "AdamW")
    k = group.optimizer_kwargs
    expect(name, "numbers", (k["lr"], [float(x) for x in k["betas"]], k["eps"], k["weight_decay"]),
           (3e-4, [0.9, 0.95], 1e-8, 0.1))
    kinds = {"none": type(None), "selective_op": SelectiveAC.Config}
    ac = plan["activation_checkpointing"]
    expect(name, "checkpointing", type(c.activation_checkpoint), kinds.get(ac if isinstance(ac, str) else "full",
                                                                          FullAC.Config))


def check_toml(name, text, job, plan):
    import tomllib

    sys.modules["tomli"] = tomllib
    import torchtitan.config.manager as manager

    manager.tomllib = tomllib
    with tempfile.NamedTemporaryFile("w", suffix=".toml", delete=False) as f:
        f.write(text)
    c = manager.ConfigManager().parse_args(["--job.config-file", f.name])
    os.unlink(f.name)
    common_torchtitan(name, c, job, plan)
    o = c.optimizer
    expect(name, "numbers", (o.name, o.lr, o.beta1, o.beta2, o.eps, o.weight_decay),
           ("Adam" if job["optimizer"]["name"] == "adam" else "AdamW", 3e-4, 0.9, 0.95, 1e-8, 0.1))
    ac = plan["activation_checkpointing"]
    wanted = ("selective", str(ac["every"])) if isinstance(ac, dict) else \
        ("selective", "op") if ac == "selective_op" else (ac, None)
    expect(name, "checkpointing", (c.activation_checkpoint.mode,
                                   c.activation_checkpoint.selective_ac_option if wanted[1] else None), wanted)


def main():
    goldens, what = json.load(open(sys.argv[1])), sys.argv[2:]
    if what and what[0] == "--one":  # a parser a process: both releases of torchtitan have one name
        kind = what[1]
        if kind in ("args", "toml"):
            sys.path.insert(0, what[2])
            without_kernels()
        read = 0
        for row in json.load(open(os.path.join(HERE, "grid.json"))):
            job, plan = merge(BASE_JOB, row["job"]), merge(BASE_PLAN, row["plan"])
            engine, titan = row["job"]["framework"]["name"], "trainer" in row["job"]["framework"]
            files = goldens[row["name"]]
            checks = {"deepspeed": (engine == "deepspeed", check_deepspeed, "deepspeed.json"),
                      "accelerate": (engine in ("fsdp1", "fsdp2", "ddp") and not titan, check_accelerate,
                                     "accelerate_fsdp.yaml"),
                      "args": (titan and engine == "fsdp2", check_args, "torchtitan.args"),
                      "toml": (titan and engine == "fsdp2", check_toml, "torchtitan.toml")}
            wanted, check, file = checks[kind]
            if not wanted:
                continue
            read += 1
            try:
                check(row["name"], files[file], job, plan)
            except (Exception, SystemExit) as e:  # a refusal
                wrong.append(f"{row['name']}, {file}: refused: {type(e).__name__}: {str(e)[:400]}")
        print("\n".join(wrong + [f"{kind}: {read} texts read, {len(wrong)} wrong"]))
        return 1 if wrong or not read else 0
    runs = [["deepspeed"], ["accelerate"], ["args", what[0]], ["toml", what[1]]]
    done = [subprocess.run([sys.executable, os.path.abspath(__file__), sys.argv[1], "--one", *run]).returncode
            for run in runs]
    return 1 if any(done) else 0


if __name__ == "__main__":
    sys.exit(main())
