#!/usr/bin/env python3
"""Makes the golden values of tests/runtime/data with transformers: tiny random models, their logits, losses, gradients and ten steps of AdamW.

    pip install torch==2.11.0 transformers==5.24.0 safetensors numpy
    python make_goldens.py OUT            # OUT = tests/runtime/data

OUT/batches.jsonl        40 rows {"input_ids", "labels"}, at most 24 tokens a row (some shorter, some labels -100): ten global batches of four
OUT/MODEL/               config.json and model.safetensors as transformers saves them, and
  golden.json            loss of the first batch; ten training steps: learning_rate, loss, grad_norm (fp32, and fp64 as a measure of
                         rounding); "packed": loss of one row of two documents, attention and positions restarting at the second
  golden.safetensors     "logits" [4, 24, vocabulary] of the first batch, "packed.logits" [24, vocabulary], "grad.NAME" of the first
                         batch's mean loss

Training: AdamW (0.9, 0.95, 1e-8), weight decay 0.1 on matrices only, clipping at 1.0, learning rate 2e-3 x min(1, s / 3) in step s
(counted from 1), then cosine that would reach 0.1 x 2e-3 in step 11; fp32; the loss is the mean over the supervised tokens of the batch.
"""

import json
import math
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

VOCABULARY, LENGTH, STEPS, BATCH = 272, 24, 10, 4
LEARNING_RATE, WARMUP, MIN_RATIO, DECAY = 2e-3, 3, 0.1, 0.1

COMMON = dict(vocab_size=VOCABULARY, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
              max_position_embeddings=64, bos_token_id=1, eos_token_id=2, use_cache=False, initializer_range=0.08)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=16)


def models():
    yield "llama_tied", LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True)), torch.bfloat16, True
    yield "llama_untied", LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=False, rms_norm_eps=1e-5, rope_parameters=LLAMA3_ROPE)), torch.float32, True
    yield "qwen2", Qwen2ForCausalLM(Qwen2Config(**COMMON, tie_word_embeddings=True, rope_parameters=dict(rope_type="default", rope_theta=1e6))), torch.bfloat16, True
    yield "qwen3", Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16, tie_word_embeddings=True)), torch.bfloat16, True
    yield "mistral", MistralForCausalLM(MistralConfig(**COMMON, tie_word_embeddings=False, sliding_window=None)), torch.float16, True
    yield "mistral_window", MistralForCausalLM(MistralConfig(**COMMON, tie_word_embeddings=True, sliding_window=8)), torch.bfloat16, False
    yield "gpt2", GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_inner=None, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
                                             attn_pdrop=0.0, bos_token_id=1, eos_token_id=2, use_cache=False, initializer_range=0.08)), torch.bfloat16, True


def batches(generator):
    """Rows with structure (a repeated motif), so that ten steps lower the loss."""
    rows = []
    for i in range(STEPS * BATCH):
        length = LENGTH if i % 5 else 13 + i % 7
        motif = torch.randint(3, VOCABULARY, (6,), generator=generator).tolist()
        ids = [1] + [motif[j % 6] if j % 4 else (i * 7 + j) % 40 + 3 for j in range(length - 1)]
        labels = list(ids)
        if i % 3 == 1:
            labels[: 4 + i % 5] = [-100] * (4 + i % 5)
        if i % 7 == 2:
            labels[length - 2] = -100
        rows.append({"input_ids": ids, "labels": labels})
    return rows


def tensors(rows):
    ids = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    labels = torch.full((len(rows), LENGTH), -100)
    mask = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for r, row in enumerate(rows):
        n = len(row["input_ids"])
        ids[r, :n] = torch.tensor(row["input_ids"])
        labels[r, :n] = torch.tensor(row["labels"])
        mask[r, :n] = 1
    return ids, labels, mask


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), labels[:, 1:].reshape(-1), ignore_index=-100)


def rate(s):
    if s <= WARMUP:
        return LEARNING_RATE * s / WARMUP
    progress = (s - 1 - WARMUP) / (STEPS - WARMUP)
    return LEARNING_RATE * (MIN_RATIO + (1 - MIN_RATIO) * 0.5 * (1 + math.cos(math.pi * progress)))


def train(model, rows, dtype):
    model = model.to(dtype)
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-8)
    losses, norms = [], []
    for s in range(1, STEPS + 1):
        ids, labels, mask = tensors(rows[(s - 1) * BATCH : s * BATCH])
        for group in optimizer.param_groups:
            group["lr"] = rate(s)
        optimizer.zero_grad()
        loss = loss_of(model(input_ids=ids, attention_mask=mask).logits, labels)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item())
        optimizer.step()
        losses.append(loss.item())
    return losses, norms


def old_style(path):
    """config.json as files older than transformers 5 have it: rope_theta and rope_scaling, torch_dtype."""
    config = json.load(open(path))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    config["torch_dtype"] = config.pop("dtype")
    json.dump(config, open(path, "w"), indent=2)


def main(out):
    os.makedirs(out, exist_ok=True)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    rows = batches(torch.Generator().manual_seed(7))
    with open(f"{out}/batches.jsonl", "w") as f:
        f.writelines(json.dumps(row) + "\n" for row in rows)
    for seed, (name, model, dtype, full) in enumerate(models()):
        torch.manual_seed(100 + seed)
        with torch.no_grad():
            for key, p in model.named_parameters():
                # Norms and biases differ from their neutral values, so that forgetting one shows; all values are exact in `dtype`.
                if p.ndim >= 2:
                    p.normal_(0, 0.08)
                elif key.endswith("bias"):
                    p.normal_(0, 0.1)
                else:
                    p.normal_(1, 0.1)
                p.copy_(p.to(dtype).float())
        folder = f"{out}/{name}"
        model.to(dtype).save_pretrained(folder)
        generation = f"{folder}/generation_config.json"
        if os.path.exists(generation):
            os.remove(generation)
        if name == "llama_untied":
            old_style(f"{folder}/config.json")
        fresh = lambda: type(model).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").train()
        golden = {"model": name, "vocabulary": VOCABULARY, "sequence_length": LENGTH, "global_batch": BATCH}
        arrays = {}
        model = fresh()
        ids, labels, mask = tensors(rows[:BATCH])
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = loss_of(logits, labels)
        loss.backward()
        golden["loss"] = loss.item()
        golden["supervised_tokens"] = int((labels[:, 1:] != -100).sum())
        arrays["logits"] = logits.detach().contiguous()
        first, second = rows[1]["input_ids"][:9], rows[2]["input_ids"][:15]
        with torch.no_grad():
            packed = torch.cat([model(input_ids=torch.tensor([part])).logits[0] for part in (first, second)])
            golden["packed"] = {"input_ids": first + second, "document_starts": [0, len(first)],
                                "loss": loss_of(packed[None], torch.tensor([first + second])).item()}
        if full:
            arrays["packed.logits"] = packed.contiguous()
            for key, p in model.named_parameters():
                arrays[f"grad.{key}"] = p.grad.contiguous()
            losses, norms = train(fresh(), rows, torch.float32)
            losses64, norms64 = train(fresh(), rows, torch.float64)
            golden["training"] = {"optimizer": "adamw", "betas": [0.9, 0.95], "epsilon": 1e-8, "weight_decay": DECAY, "max_grad_norm": 1.0,
                                  "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP, "min_lr_ratio": MIN_RATIO, "lr_scheduler_type": "cosine",
                                  "learning_rates": [rate(s) for s in range(1, STEPS + 1)], "losses": losses, "grad_norms": norms,
                                  "losses_fp64": losses64, "grad_norms_fp64": norms64}
            print(name, losses[0], losses[-1], "rounding", max(abs(a - b) / b for a, b in zip(losses, losses64)))
        json.dump(golden, open(f"{folder}/golden.json", "w"), indent=1)
        save_file(arrays, f"{folder}/golden.safetensors")
        print(name, golden["loss"], golden["packed"]["loss"])


if __name__ == "__main__":
    main(sys.argv[1])
