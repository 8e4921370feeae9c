#!/usr/bin/env python3
"""Runs a Python script with a CUDA build of PyTorch on a pretended GPU.

    fake_gpu.py --torch WHEEL_DIR --libraries DIR [--device A100-80] [--path DIR]... SCRIPT [ARGS]

WHEEL_DIR: an unpacked torch wheel; DIR: what build.py made for it; --path: folders with further Python packages.
"""
import argparse, os, sys

p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("--torch", required=True)
p.add_argument("--libraries", required=True)
p.add_argument("--device", default="A100-80")
p.add_argument("--path", action="append", default=[])
p.add_argument("script", nargs=argparse.REMAINDER)
a = p.parse_args()
if not a.script:
    p.error("no script")
here = os.path.dirname(os.path.abspath(__file__))
env = dict(os.environ, FAKEGPU_DEVICE=a.device, TORCH_NCCL_ENABLE_MONITORING="0", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
env.setdefault("OMP_NUM_THREADS", "1")
for key, dirs in {"LD_LIBRARY_PATH": [a.libraries], "PYTHONPATH": [*a.path, a.torch, here]}.items():
    env[key] = ":".join([os.path.abspath(d) for d in dirs] + [v for v in [os.environ.get(key)] if v])
os.execve(sys.executable, [sys.executable, *a.script], env)
