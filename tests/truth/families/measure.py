# Measures what a model of Hugging Face transformers really keeps for backward and allocates, without a GPU and without memory: the
# model runs on fake tensors (sizes only), and every operator that reaches ATen is seen by a dispatch mode that follows storages by
# weak references. Writes one JSON line a run; `all` runs every family and variant:
#
#   python3 measure.py all > families.jsonl          with transformers and torch on PYTHONPATH
#   python3 measure.py gemma2 bf16-eager --explain   what is alive at the peaks, by the line of code that made it
#
# Fake tensors are CPU tensors here, because autograd's engine wants a real device for others. What CUDA does otherwise is put back:
# dropout in one kernel with a mask of bytes, SDPA's choice of kernel, autocast's list of fp32 operators, and the memory that kernels
# take inside of one operator (INSIDE).
import contextlib
import gc
import json
import os
import sys
import types
import weakref

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, SEQUENCE = 2, 1024
aten = torch.ops.aten


def rounded(n):
    return (n + 511) // 512 * 512


def up(n, to):
    return (n + to - 1) // to * to


# --- kernels ------------------------------------------------------------------------------------------------------------------------
def flash_backward_inside(q, k, heads_first):
    # flash_attn csrc/flash_attn/flash_api.cpp mha_bwd, the same code in ATen/native/transformers/cuda/flash_attn: dq_accum and softmax_d in
    # fp32 over rounded rows, and dk, dv of every query head before they are summed by group
    b = q.shape[0]
    h, s, d = (q.shape[1], q.shape[2], q.shape[3]) if heads_first else (q.shape[2], q.shape[1], q.shape[3])
    hk, sk = (k.shape[1], k.shape[2]) if heads_first else (k.shape[2], k.shape[1])
    rows, width = up(s, 128), up(d, 32 if d <= 128 else 64)
    n = rounded(b * h * rows * 4) + rounded(b * rows * h * width * 4)
    if hk != h:
        n += 2 * rounded(b * sk * h * d * q.element_size())
    return n


def efficient_backward_inside(q, k, v):
    # ATen/native/transformers/cuda/attention_backward.cu _efficient_attention_backward: delta, and an fp32 workspace where the kernel
    # accumulates outputs (mem_eff_attention/kernel_backward.h workspace_size: gq, gk, gv in fp32 for bf16 inputs when keys of a block do
    # not hold them in registers, i.e. head dimension > 64 for gk/gv; gq always when several key blocks are written)
    b, h, s, d = q.shape
    sk = k.shape[2]
    n = rounded(b * h * s * 4)
    if q.element_size() == 2:
        n += rounded(b * h * up(sk, 128) * (2 * up(d, 64) if d > 128 else 0) * 4 + b * h * up(s, 128) * up(d, 64) * 4)
    return n


INSIDE = {
    "aten._scaled_dot_product_flash_attention_backward.default": lambda a: flash_backward_inside(a[1], a[2], True),
    "aten._scaled_dot_product_efficient_attention_backward.default": lambda a: efficient_backward_inside(a[1], a[2], a[3]),
    # ATen/native/cuda/Embedding.cu: sorted and original indices, counts, and cub's temporary storage
    "aten.embedding_dense_backward.default": lambda a: 5 * rounded(a[1].numel() * 8) if a[1].numel() > 3072 else 0,
}

_flash = torch.library.Library("standin_flash", "DEF")
_flash.define("fwd(Tensor q, Tensor k, Tensor v) -> (Tensor, Tensor, Tensor)")
_flash.define("bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor(a!) dq, Tensor(b!) dk, Tensor(c!) dv) -> Tensor")


def _fwd(q, k, v):
    b, s, h, _ = q.shape
    return torch.empty_like(q), q.new_empty((b, h, s), dtype=torch.float32), q.new_empty((2,), dtype=torch.int64)


def _bwd(dout, q, k, v, out, lse, dq, dk, dv):
    b, s, h, _ = q.shape
    return q.new_empty((b, h, up(s, 128)), dtype=torch.float32)   # softmax_d, which the function returns


for key in ("CPU", "Meta"):
    _flash.impl("fwd", _fwd, key)
    _flash.impl("bwd", _bwd, key)
INSIDE["standin_flash.bwd.default"] = lambda a: flash_backward_inside(a[1], a[2], False) - rounded(a[1].shape[0] * a[1].shape[2] * up(a[1].shape[1], 128) * 4)


class FlashAttnFunc(torch.autograd.Function):
    # flash_attn/flash_attn_interface.py
    @staticmethod
    def forward(ctx, q, k, v):
        d = q.size(3)
        if d % 8:
            q, k, v = (F.pad(t, [0, 8 - d % 8]) for t in (q, k, v))
        q, k, v = (t if t.stride(-1) == 1 else t.contiguous() for t in (q, k, v))
        out, lse, rng = torch.ops.standin_flash.fwd(q, k, v)
        ctx.save_for_backward(q, k, v, out, lse, rng)
        return out[..., :d]

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse, rng = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dout = dout if dout.stride(-1) == 1 else dout.contiguous()
        torch.ops.standin_flash.bwd(dout, q, k, v, out, lse, dq, dk, dv)
        d = dout.shape[-1]
        return dq[..., :d], dk[..., :d], dv[..., :d]


def flash_attn_func(q, k, v, dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, alibi_slopes=None, deterministic=False, return_attn_probs=False, **_):
    return FlashAttnFunc.apply(q, k, v)


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    # aten/src/ATen/native/transformers/attention.cpp and cuda/sdp_utils.cpp on an Ampere or later GPU: flash where there is no mask and
    # 16-bit tensors with head dimension <= 256, else memory-efficient, else math (grouped heads with a mask)
    q, k, v = query, key, value
    grads = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    if torch.is_autocast_enabled("cpu"):
        q, k, v = (t.to(torch.bfloat16) for t in (q, k, v))
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.to(torch.bfloat16)
    d, dv = q.shape[-1], v.shape[-1]
    if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16) and d == dv and d <= 256:
        pad = (8 - d % 8) % 8
        if pad:
            q, k, v = (F.pad(t, [0, pad]) for t in (q, k, v))
        out = aten._scaled_dot_product_flash_attention.default(q, k, v, dropout_p, is_causal, False, scale=scale if scale is not None else d**-0.5)[0]
        return out[..., :d] if pad else out
    if not enable_gqa or q.shape[1] == k.shape[1]:
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:                   # convert_boolean_attn_mask
                z = torch.zeros((), dtype=q.dtype)
                m = torch.full((), float("-inf"), dtype=q.dtype)
                attn_mask = torch.where(attn_mask, z, m)
            attn_mask = attn_mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
            if k.shape[2] % 8:                                  # pad_bias
                pad = 8 - k.shape[2] % 8
                attn_mask = F.pad(attn_mask, [0, pad])[..., : k.shape[2]]
        return aten._scaled_dot_product_efficient_attention.default(q, k, v, attn_mask, grads, dropout_p, is_causal, scale=scale)[0]
    n = q.shape[1] // k.shape[1]                                # _scaled_dot_product_attention_math
    k, v = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    f = (scale if scale is not None else d**-0.5) ** 0.5
    w = torch.matmul(q * f, k.transpose(-2, -1) * f)
    if attn_mask is not None:
        w += (attn_mask if attn_mask.is_floating_point() else torch.where(attn_mask, 0.0, float("-inf")).to(w.dtype))
    w = dropout(torch.softmax(w, -1), dropout_p)
    return torch.matmul(w, v)


def dropout(input, p=0.5, training=True, inplace=False):
    return torch.native_dropout(input, p, True)[0] if training and 0 < p < 1 else input


class CudaAutocast(TorchFunctionMode):
    # aten/src/ATen/autocast_mode.h, AT_FORALL_FP32: what CUDA's autocast runs in fp32 and CPU's does not
    NAMES = {"pow", "__pow__", "__rpow__", "rsqrt", "exp", "log", "layer_norm", "native_layer_norm", "group_norm", "softmax", "log_softmax", "cumsum", "prod", "sum", "norm", "nll_loss",
             "cross_entropy", "mse_loss", "softplus", "reciprocal", "log1p", "expm1", "logsumexp", "cosine_similarity", "rms_norm"}

    def __torch_function__(self, f, types_, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.is_autocast_enabled("cpu") and getattr(f, "__name__", "") in self.NAMES:
            low = lambda t: t.float() if isinstance(t, torch.Tensor) and t.dtype in (torch.bfloat16, torch.float16) else t
            if f.__name__ in ("softmax", "log_softmax", "cumsum", "prod", "sum") and kwargs.get("dtype") is None and args and isinstance(args[0], torch.Tensor) and args[0].is_floating_point():
                kwargs = dict(kwargs, dtype=torch.float32)
                if f.__name__ not in ("softmax", "log_softmax"):
                    args = tuple(low(a) for a in args)
            elif f.__name__ not in ("softmax", "log_softmax", "cumsum", "prod", "sum"):
                args = tuple(low(a) for a in args)
                kwargs = {k: low(v) for k, v in kwargs.items()}
        return f(*args, **kwargs)


# --- following storages ---------------------------------------------------------------------------------------------------------------
class Meter(TorchDispatchMode):
    def __init__(self, explain=False):
        super().__init__()
        self.live, self.alive = 0, {}
        self.phase, self.peaks, self.at_peak = "load", {}, {}
        self.explain = explain
        self.last = ""

    def watch(self, t, name):
        st = t.untyped_storage()
        key = st._cdata
        if key in self.alive:
            return
        n = rounded(st.nbytes())
        where = self.where() if self.explain else None
        self.alive[key] = (n, name, tuple(t.shape), str(t.dtype)[6:], where)
        self.live += n
        weakref.finalize(st, self.gone, key)

    def gone(self, key):
        self.live -= self.alive.pop(key)[0]

    @staticmethod
    def where():
        f, out = sys._getframe(2), []
        while f and len(out) < 3:
            name = f.f_code.co_filename
            if "/transformers/" in name and ("modeling" in name or "integrations" in name or "loss" in name or "activations" in name or "masking" in name):
                out.append(f"{os.path.basename(name)}:{f.f_lineno}")
            f = f.f_back
        return " < ".join(out)

    def enter(self, phase):
        self.phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.live)

    def touch(self, extra, name):
        n = self.live + extra
        if n > self.peaks.get(self.phase, 0):
            self.peaks[self.phase] = n
            if self.explain:
                self.at_peak[self.phase] = (n, extra, name, list(self.alive.values()))

    def __torch_dispatch__(self, func, types_, args=(), kwargs=None):
        name = str(func)
        if name == "aten._local_scalar_dense.default":           # a tensor asked for its value: the mask has no padding
            return self.last != "aten.any"
        out = func(*args, **(kwargs or {}))
        if name.rsplit(".", 1)[0] in ("aten.all", "aten.any", "aten.eq"):
            self.last = name.rsplit(".", 1)[0]
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor):
                self.watch(t, name)
        inside = INSIDE.get(name)
        self.touch(inside(args) if inside else 0, name)
        return out


def report(what, base):
    n, extra, name, alive = what
    print(f"  {(n - base) / 2**20:10.2f} MiB above parameters at {name}, inside {extra / 2**20:.2f}")
    groups = {}
    for b, op, shape, dtype, where in alive:
        g = groups.setdefault((op, shape, dtype, where), [0, 0])
        g[0] += 1
        g[1] += b
    for (op, shape, dtype, where), (count, b) in sorted(groups.items(), key=lambda kv: -kv[1][1])[:60]:
        if op != "parameter":
            print(f"    {b / 2**20:9.2f} MiB {count:3} x {dtype:9} {str(list(shape)):26} {op:44} {where}")


# --- models ---------------------------------------------------------------------------------------------------------------------------
def stand_ins():
    F.scaled_dot_product_attention = torch.nn.functional.scaled_dot_product_attention = sdpa
    F.dropout = torch.nn.functional.dropout = dropout
    m = types.ModuleType("flash_attn")
    m.__version__ = "2.8.0"
    m.flash_attn_func = m.flash_attn_varlen_func = m.flash_attn_with_kvcache = flash_attn_func
    m.__spec__ = types.SimpleNamespace(name="flash_attn", loader=None, origin="stand-in", submodule_search_locations=[])
    p = types.ModuleType("flash_attn.bert_padding")
    p.pad_input = p.unpad_input = p.index_first_axis = None
    r = types.ModuleType("flash_attn.layers.rotary")
    r.apply_rotary_emb = None
    sys.modules.update({"flash_attn": m, "flash_attn.bert_padding": p, "flash_attn.layers": types.ModuleType("flash_attn.layers"), "flash_attn.layers.rotary": r})
    import transformers.utils.import_utils as iu
    import transformers.utils as u
    yes = lambda *a, **k: True
    iu.is_flash_attn_2_available = u.is_flash_attn_2_available = yes
    iu.is_flash_attn_greater_or_equal = u.is_flash_attn_greater_or_equal = yes
    iu.is_flash_attn_greater_or_equal_2_10 = u.is_flash_attn_greater_or_equal_2_10 = yes
    iu.is_fake_tensor = lambda t: False                          # fake tensors count as tracing, which takes other paths


AUTO = {"ForCausalLM": "AutoModelForCausalLM", "LMHeadModel": "AutoModelForCausalLM", "ForMaskedLM": "AutoModelForMaskedLM", "ForSequenceClassification": "AutoModelForSequenceClassification",
        "ForConditionalGeneration": "AutoModelForSeq2SeqLM", "ForImageClassification": "AutoModelForImageClassification"}


def build(config, attention, dtype):
    import transformers as tf
    config = dict(config)
    architecture = config["architectures"][0]
    kind = config.pop("model_type")
    v5 = int(tf.__version__.split(".")[0]) >= 5
    if v5 and "rope_theta" in config:
        pass
    c = tf.AutoConfig.for_model(kind, **config)
    cls = getattr(tf, architecture, None)
    if cls is None:
        cls = getattr(tf, next(a for end, a in AUTO.items() if architecture.endswith(end)))
        cls = cls._model_mapping[type(c)]
    wanted = {"sdpa": "sdpa", "eager": "eager", "flash": "flash_attention_2"}[attention]
    from transformers.modeling_utils import PreTrainedModel as P
    if v5:
        P._flash_attn_can_dispatch = lambda self, *a, **k: True
        if attention == "flash" and not getattr(cls, "_supports_flash_attn", False):
            raise NotImplementedError("no flash attention in this model")
        if attention == "sdpa" and not getattr(cls, "_supports_sdpa", False):
            raise NotImplementedError("no SDPA in this model")
        model = cls._from_config(c, attn_implementation=wanted, dtype=dtype)
    else:
        if attention == "flash" and not getattr(cls, "_supports_flash_attn_2", False):
            raise NotImplementedError("no flash attention in this model")
        if attention == "sdpa" and not getattr(cls, "_supports_sdpa", False):
            raise NotImplementedError("no SDPA in this model")
        P._check_and_enable_flash_attn_2 = classmethod(lambda cls_, config_, *a, **k: (setattr(config_, "_attn_implementation", "flash_attention_2"), config_)[1])
        model = cls._from_config(c, attn_implementation=wanted, torch_dtype=dtype)
    assert model.config._attn_implementation == wanted, model.config._attn_implementation
    model.train()
    return model, v5


def block_modules(model):
    # ModuleLists of the stacks, in the order in which they run
    import torch.nn as nn
    lists = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList) and len(m) > 1 and not any(x in n for x in ("experts", "attn", "mlp"))]
    top = [(n, m) for n, m in lists if not any(n.startswith(o + ".") for o, _ in lists)]
    top.sort(key=lambda nm: 0 if "encoder" in nm[0] and "decoder" not in nm[0] else 1)
    return [b for _, m in top for b in m]


def variant_of(name):
    parts = name.split("-")
    return {"precision": parts[0], "attention": parts[1], "checkpoint": parts[2] if len(parts) > 2 else "none"}


@contextlib.contextmanager
def autocast(on):
    if not on:
        yield
        return
    with CudaAutocast(), torch.autocast("cpu", dtype=torch.bfloat16):
        yield


def run(family, config, variant, explain=False):
    import transformers as tf
    v = variant_of(variant)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "amp": torch.float32}[v["precision"]]
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cpu"):
        model, v5 = build(config, v["attention"], dtype)
        if v5:
            model.config.use_cache = False                       # Trainer: TrainingArguments.use_cache
        if v["checkpoint"] != "none":
            model.config.use_cache = False
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": v["checkpoint"] == "reentrant", "preserve_rng_state": False})
            if v["checkpoint"] == "reentrant":
                model.enable_input_require_grads()
        architecture = config["architectures"][0]
        ids = torch.zeros((BATCH, SEQUENCE), dtype=torch.int64)
        if "Image" in architecture:
            inputs = {"pixel_values": torch.zeros((BATCH * 8, config["num_channels"], config["image_size"], config["image_size"]), dtype=dtype), "labels": torch.zeros((BATCH * 8,), dtype=torch.int64)}
        elif "SequenceClassification" in architecture:
            inputs = {"input_ids": ids, "labels": torch.zeros((BATCH,), dtype=torch.int64)}
        elif "t5" in config["model_type"]:
            inputs = {"input_ids": ids, "labels": torch.zeros((BATCH, SEQUENCE // 2), dtype=torch.int64)}
        else:
            inputs = {"input_ids": ids, "labels": torch.zeros((BATCH, SEQUENCE), dtype=torch.int64)}
        if "input_ids" in inputs:
            inputs["attention_mask"] = torch.ones((BATCH, SEQUENCE), dtype=torch.int64)
        meter = Meter(explain)
        for t in list(model.parameters()) + list(model.buffers()) + list(inputs.values()):
            meter.watch(t, "parameter")
        gc.collect()
        base = meter.live
        blocks = block_modules(model)
        entered, left = [], []
        first = {"block": True}
        snapshots = []

        def before(module, args, kwargs=None):
            if meter.phase in ("embedding", "loss"):
                meter.enter("forward")
            if meter.phase == "forward":
                entered.append(meter.live)

        def after(module, args, out):
            if meter.phase == "forward":
                left.append(meter.live)
                if explain:
                    snapshots.append(list(meter.alive.values()))
                if len(left) == len(blocks):
                    meter.enter("loss")

        for b in blocks:
            b.register_forward_pre_hook(before)
            b.register_forward_hook(after)
        gc.disable()
        with meter:
            meter.enter("embedding")
            with autocast(v["precision"] == "amp"):
                outputs = model(**inputs)
            if v["precision"] == "amp":                          # accelerate: convert_outputs_to_fp32 around the model's forward
                outputs = {k: t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t for k, t in outputs.items()}
            loss = outputs["loss"]
            outputs = None                                       # Trainer.compute_loss
            meter.enter("backward")
            start = meter.live
            loss.backward()
        gc.enable()
        left_over = meter.live
    line = {"family": family, "variant": variant, "transformers": tf.__version__, "torch": torch.__version__.split("+")[0], "batch": BATCH if "Image" not in architecture else BATCH * 8, "sequence": SEQUENCE,
            "blocks": len(blocks), "parameters": sum(p.numel() for p in {id(p): p for p in model.parameters()}.values()),
            "kept": [b - a for a, b in zip([entered[0]] + left[:-1], left)], "first_block": entered[0] - base,
            "forward_peak": max(meter.peaks["forward"], meter.peaks["embedding"]) - base, "loss_peak": meter.peaks["loss"] - base, "backward_start": start - base, "backward_peak": meter.peaks["backward"] - base,
            "end": left_over - base}
    if explain:
        print(json.dumps(line))
        for phase in ("embedding", "forward", "loss", "backward"):
            if phase in meter.at_peak:
                print(phase)
                report(meter.at_peak[phase], base)
        if len(snapshots) > 2:
            print("kept by block 1")
            seen = {}
            for x in snapshots[0]:
                seen[x] = seen.get(x, 0) + 1
            new = []
            for x in snapshots[1]:
                if seen.get(x, 0) > 0:
                    seen[x] -= 1
                else:
                    new.append(x)
            report((sum(x[0] for x in new) + base, 0, "end of block 1", new), base)
    return line


VARIANTS = ["bf16-sdpa", "bf16-eager", "bf16-flash", "fp32-sdpa", "fp32-eager", "amp-sdpa", "amp-eager", "amp-flash", "bf16-sdpa-full", "bf16-eager-full", "amp-sdpa-full", "bf16-sdpa-reentrant", "fp32-eager-full"]


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    configs = json.load(open(os.path.join(here, "configs.json")))
    stand_ins()
    import logging
    import warnings
    warnings.filterwarnings("ignore")
    import transformers
    transformers.logging.set_verbosity_error()
    if sys.argv[1] == "all" or "," in sys.argv[1] or len(sys.argv) == 2:
        names = list(configs) if sys.argv[1] == "all" else sys.argv[1].split(",")
        variants = [a for a in sys.argv[2:] if "-" in a] or VARIANTS
        for family in names:
            for variant in variants:
                try:
                    line = run(family, configs[family], variant)
                    print(json.dumps(line), flush=True)
                except Exception as e:
                    gc.enable()
                    print(f"{family} {variant}: {type(e).__name__}: {str(e).splitlines()[0][:200] if str(e) else ''}", file=sys.stderr, flush=True)
    else:
        run(sys.argv[1], configs[sys.argv[1]], sys.argv[2], "--explain" in sys.argv)


main()
