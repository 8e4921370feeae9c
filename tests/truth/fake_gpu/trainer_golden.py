#!/usr/bin/env python3
"""Golden peaks of whole training steps with Hugging Face's Trainer on one GPU; run by fake_gpu.py with FAKEGPU_DEVICES=1.

    trainer_golden.py OUT.jsonl [PART_OF_ID,... [use_cache]]

One line a case, in the format of README.md: job, plan, peaks a step, versions. Cases that run out of memory say so.
"""
import json, os, sys
import torch, transformers, accelerate
import transformers.trainer                        # imported before the processes of the cases are forked
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainerCallback, TrainingArguments, default_data_collator

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 3
GPU = {"A100-80": "a100_sxm_80gb", "H100": "h100_sxm_80gb", "RTX4090": "rtx_4090_24gb"}[os.environ["FAKEGPU_DEVICE"]]


class Watch(TrainerCallback):
    def __init__(self):
        self.steps = []

    def on_step_begin(self, *args, **kwargs):
        torch.cuda.reset_peak_memory_stats()

    def on_step_end(self, *args, **kwargs):
        self.steps.append([torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()])


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows, length):
        self.rows, self.length = rows, length

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        ids = torch.zeros(self.length, dtype=torch.long)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}


def measure(job, plan):
    config = AutoConfig.for_model(**json.load(open(os.path.join(HERE, job["model"]))))
    config.use_cache = job["framework"]["use_cache"]
    config._attn_implementation = job["attention"]
    kind = {"fp32": torch.float32, "bf16-mixed": torch.float32, "bf16": torch.bfloat16}[job["precision"]]
    torch.cuda.init()
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, torch_dtype=kind, attn_implementation=job["attention"])
    torch.set_default_dtype(torch.float32)
    parameters = sum(p.numel() for p in model.parameters())
    full = plan["activation_checkpointing"] == "full"
    arguments = TrainingArguments(
        output_dir="/tmp/fake_gpu_out", per_device_train_batch_size=plan["micro_batch"], gradient_accumulation_steps=plan["gradient_accumulation"],
        max_steps=STEPS, bf16=job["precision"] == "bf16-mixed", gradient_checkpointing=full,
        gradient_checkpointing_kwargs={"use_reentrant": plan["reentrant"]} if full else None,
        optim="adamw_torch_fused" if job["optimizer"]["implementation"] == "fused" else "adamw_torch", report_to=[], save_strategy="no",
        logging_steps=1000, disable_tqdm=True, dataloader_pin_memory=True)
    watch = Watch()
    rows = Rows(plan["micro_batch"] * plan["gradient_accumulation"] * STEPS, job["sequence_length"])
    trainer = Trainer(model=model, args=arguments, train_dataset=rows, data_collator=default_data_collator, callbacks=[watch])
    result = {"kind": "peak", "parameters": parameters}
    try:
        trainer.train()
    except torch.cuda.OutOfMemoryError as e:
        result["kind"] = "oom"
    result["by_step"] = watch.steps
    if result["kind"] == "peak":
        result["allocated"] = max(a for a, _ in watch.steps)
        result["reserved"] = max(r for _, r in watch.steps)
    return result


def in_process(function, *args):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        try:
            os.write(write, json.dumps(function(*args)).encode())
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        text = f.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else None


def cases():
    models = {"llama-130m": "GaLore__llama_130m", "llama-3.2-1b": "meta-llama__Llama-3.2-1B", "qwen2.5-0.5b": "Qwen__Qwen2.5-0.5B-Instruct",
              "qwen3-1.7b": "Qwen__Qwen3-1.7B", "mistral-7b": "mistralai__Mistral-7B-Instruct-v0.2", "llama-3-8b": "meta-llama__Meta-Llama-3-8B",
              "gpt2-medium": "openai-community__gpt2-medium"}
    shapes = [(1, 512, 1), (4, 1000, 1), (2, 2048, 1), (2, 1024, 2)]
    n = 0
    for name, file in models.items():
        for precision in ("fp32", "bf16", "bf16-mixed"):
            for checkpointing in ("none", "full"):
                for attention in ("sdpa", "eager"):
                    for shape in (0, 1) if attention == "sdpa" else (0,):
                        micro_batch, length, accumulation = shapes[(n + 2 * shape) % 4]
                        implementation = ("foreach", "fused")[(n // 2) % 2]
                        n += 1
                        if name == "gpt2-medium":
                            length = min(length, 1024)
                        if attention == "eager":
                            length = min(length, 1024)
                        job = {"model": f"../configs/{file}.json", "method": "full", "sequence_length": length,
                               "global_batch_sequences": micro_batch * accumulation, "precision": precision,
                               "optimizer": {"name": "adamw", "implementation": implementation}, "attention": attention, "loss": "plain",
                               "framework": {"name": "ddp", "trainer": "transformers", "trainer_version": transformers.__version__, "use_cache": "use_cache" in sys.argv},
                               "software": {"torch": torch.__version__.split("+")[0]}}
                        plan = {"gpu": GPU, "gpus_per_node": 1, "nodes": 1, "sharding": {"stage": 0}, "micro_batch": micro_batch,
                                "gradient_accumulation": accumulation, "activation_checkpointing": checkpointing}
                        yield f"{name}/{precision}/{checkpointing}/{attention}/{implementation}/{micro_batch}x{length}x{accumulation}", job, plan


def main():
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else [""]
    with open(sys.argv[1], "w") as out:
        for id, job, plan in cases():
            if not any(w in id for w in wanted):
                continue
            measured = in_process(measure, job, dict(plan, reentrant=False))
            if measured is None:
                sys.exit(f"{id}: failed")
            if plan["activation_checkpointing"] == "full":
                plan["activation_checkpointing"] = {"kind": "full", "reentrant": False}
            out.write(json.dumps({"id": f"trainer-{transformers.__version__}/{id}", "job": job, "plan": plan, "measured": measured,
                                  "versions": {"torch": torch.__version__, "transformers": transformers.__version__, "accelerate": accelerate.__version__},
                                  "made_by": "trainer_golden.py"}) + "\n")
            out.flush()


main()
