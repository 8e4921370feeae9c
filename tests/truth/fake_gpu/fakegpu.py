"""Used by scripts that run on the fake GPU: be rank 0 of N in one process; stand-ins for DeepSpeed's compiled optimizers; peaks."""
import os, stat, tempfile


def rank0_of(ranks, port=29571):
    """Starts torch.distributed with the real ProcessGroupNCCL as rank 0 of `ranks`; the other ranks do not exist."""
    import torch
    import torch.distributed as dist
    for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(min(ranks, 8)), MASTER_ADDR="127.0.0.1",
                           MASTER_PORT=str(port)).items():
        os.environ[key] = value
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=ranks)


def deepspeed():
    """Imports deepspeed where no CUDA toolkit is installed; FusedAdam and CPUAdam then do nothing (they allocate nothing either)."""
    home = tempfile.mkdtemp()
    os.makedirs(home + "/bin")
    import torch
    with open(home + "/bin/nvcc", "w") as f:
        f.write(f"#!/bin/sh\necho 'Cuda compilation tools, release {torch.version.cuda}, V{torch.version.cuda}.0'\n")
    os.chmod(home + "/bin/nvcc", stat.S_IRWXU)
    os.environ["CUDA_HOME"] = home
    os.environ["DS_ACCELERATOR"] = "cuda"
    import deepspeed
    from deepspeed.ops import op_builder

    class Nothing:
        def __getattr__(self, name):
            return lambda *args, **kwargs: 0
    for name in ("FusedAdamBuilder", "CPUAdamBuilder", "FusedLambBuilder", "FusedLionBuilder", "CPULionBuilder"):
        if hasattr(op_builder, name):
            getattr(op_builder, name).load = lambda self, verbose=True: Nothing()
    try:                                            # gradients are zero here; BF16_Optimizer insists on a norm above zero
        import deepspeed.runtime.bf16_optimizer as bf16
        norm = bf16.get_global_norm_of_tensors
        bf16.get_global_norm_of_tensors = lambda *args, **kwargs: norm(*args, **kwargs) is None or 1.0
    except (ImportError, AttributeError):
        pass
    return deepspeed


class Peaks:
    """Allocated and reserved peaks since the last call, in bytes."""
    def __init__(self):
        import torch
        self.cuda = torch.cuda
        self.cuda.reset_peak_memory_stats()

    def take(self):
        found = {"allocated": self.cuda.max_memory_allocated(), "reserved": self.cuda.max_memory_reserved()}
        self.cuda.reset_peak_memory_stats()
        return found


class History:
    """Which blocks are alive at the highest moment of a stretch, with the Python lines that made them.

        with fakegpu.History() as h: step()
        h.print()
    """
    def __enter__(self):
        import torch
        self.torch = torch
        torch.cuda.memory._record_memory_history(max_entries=10 ** 7, stacks="python")
        self.before = sum(s["allocated_size"] for s in torch.cuda.memory_snapshot())
        return self

    def __exit__(self, *error):
        snapshot = self.torch.cuda.memory._snapshot()
        self.events = snapshot["device_traces"][0]
        self.torch.cuda.memory._record_memory_history(enabled=None)

    def at_peak(self):
        now = most = self.before
        when = 0
        for i, e in enumerate(self.events):
            now += {"alloc": e["size"], "free_requested": -e["size"]}.get(e["action"], 0)
            if now > most:
                most, when = now, i
        alive = {}
        for e in self.events[:when + 1]:
            if e["action"] == "alloc":
                alive[e["addr"]] = e
            elif e["action"] == "free_requested":
                alive.pop(e["addr"], None)
        return most, list(alive.values())

    def print(self, lines=30, skip=("torch/nn/modules/module.py", "torch/autograd/", "torch/utils/_contextlib.py", "torch/_tensor.py")):
        most, alive = self.at_peak()
        groups = {}
        for e in alive:
            frames = [f"{f['filename'].split('site-packages/')[-1][-48:]}:{f['line']} {f['name']}" for f in e["frames"] if not any(s in f["filename"] for s in skip)]
            key = (" < ".join(frames[:3]), e["size"])
            groups[key] = groups.get(key, 0) + 1
        print(f"before {self.before}, peak {most}, alive since the start of the stretch: {sum(e['size'] for e in alive)}")
        for (where, size), count in sorted(groups.items(), key=lambda g: -g[0][1] * g[1])[:lines]:
            print(f"{size * count:>14} = {count} x {size}  {where}")
