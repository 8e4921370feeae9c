#!/usr/bin/env python3
"""Makes tests/runtime/tokenizer/data: small byte-level BPE tokenizers of every kind the runtime reads, trained and run by `tokenizers`.

    pip install tokenizers==0.23.3
    python make_tokenizer_goldens.py OUT [--also NAME=FOLDER_WITH_TOKENIZER_JSON]...

OUT/NAME.json            a tokenizer.json with a vocabulary of about 700
OUT/NAME.golden.json     {"texts": [...], "ids": [[...]], "plain_ids": [[...]] (add_special_tokens false), "decoded": [...] (of ids)}
With --also, golden ids of a tokenizer that is too large to keep here (SmolLM2's) are written as NAME.golden.json alone.
"""

import argparse
import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

TRAINING = [
    "The quick brown fox jumps over the lazy dog. It's what they've said; we'll see, I'm sure, you'd agree, they're RIGHT.",
    "def main(argc: int, argv: list[str]) -> int:\n    for i in range(10):\n        print(f\"{i:>4}\")\n    return 0\n\n\n",
    "Numbers: 1 12 123 1234 12345 3.14159 1,000,000 0x1F 2026-11-29 19:18:00 +41 44 668 18 00\n",
    "Größe, naïve café, Zürich, Ελλάδα, Привет мир, שלום עולם, مرحبا بالعالم, नमस्ते दुनिया, ราชอาณาจักรไทย\n",
    "你好，世界。今天天气很好。東京は日本の首都です。안녕하세요 세계\n",
    "the the the and and of of to to in in that that is is was was for for on on with with as as by by at at training trained train models model\n",
    "int x = 0;\t// comment\r\n#include <vector>\r\n\r\nstruct A { int b; };\r\n",
] * 3

TEXTS = [
    "", " ", "  ", "\n", "\n\n\n", " \n \n", "\t\tx", "a", " a", "  a", "a ", "a  ", "a   b", "a \n b", "a\n\n  b\n", "x\r\ny\r\n\r\nz", "\r\r\n\n\r",
    "Hello, world!", "hello world's it's IT'S It'S we'll WE'LL they've THEY'VE I'm I'M you'd YOU'D 're 'RE 's 'S 't", "don't can\u2019t it\u2019s '\u017f 's' ''s",
    "The quick brown fox jumps over the lazy dog.", "1 12 123 1234 12345 123456 1234567", "3.14159e-10, 1,000,000; 0xDEADBEEF", "a1b22c333d4444",
    "\u0661\u0662\u0663 \u0968\u096a \u2160\u2161 \u00bd\u00b2\u2460 \U0001d7d8\U0001d7d9", "Gr\u00f6\u00dfe na\u00efve caf\u00e9 Z\u00fcrich", "e\u0301 u\u0308 A\u030a \u212b \ufb01 \u1e9b\u0323 \u0344",
    "\uac00\u1100\u1161\u11a8 \u1112\u1161\u11ab", "\u0395\u03bb\u03bb\u03ac\u03b4\u03b1 \u041f\u0440\u0438\u0432\u0435\u0442", "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 \u0e23\u0e32\u0e0a", "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1e8\U0001f1ed\u2764\ufe0f\U0001f44d\U0001f3fd!!", "\u00a0\u2003\u3000x\u2028y\u2029z\u0085w\u200bv\ufeff",
    "\x00\x01\x1c\x1d\x1e\x1f\x7f\x80", "def f(x):\n    if x > 0:\n        return x ** 2\n\n\n    return -x  # comment\n", "\tint main() {\r\n\t\treturn 0;\r\n\t}\r\n",
    "https://example.org/a/b?c=d&e=%20f#g", "foo_bar fooBar FOO-BAR __init__ snake_case2", "!!! ??? ... --- === ((())) [[]] {{}} <<>>", "\"quoted\" 'single' \u201ccurly\u201d \u2018q\u2019 \u00abguill\u00bb",
    "a" * 100, "ab" * 200, " " * 100, " " * 60 + "x", "\n" * 50 + " " * 30, "the " * 50, "0123456789" * 12, "\u4f60" * 70, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab" * 3,
    "<|endoftext|>", "a<|endoftext|>b", " <|endoftext|> ", "<|endoftext|><|endoftext|>", "<|endoftext", "<|im_start|>user\nhi<|im_end|>\n", "<|endoftext|>\n\n<|im_start|>", "[X] [XY] [XYZ] x[XY]y  [pad]  x [pad]y",
    "word wordy sword word", "\U00010348\U0001d11e\U0002f800 \ue000\uffff", "mixed \u0440\u0443\u0441\u0441\u043a\u0438\u0439text\u4e2d\u6587123abc", "It's 5 o'clock; we're 'll d've l'd x'S", "\u01c5\u02b0\u16ee\u3007 \u00aa\u00ba", "line1\n \n  line2\n\t\n", "trailing spaces   \n   leading",
]

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK = [r"\p{N}{1,3}", r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
            r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]


def byte_level(regex, prefix=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def split(regex, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(regex), behavior, invert)


def kinds():
    yield "gpt2", dict(pre=byte_level(True), post=processors.ByteLevel(trim_offsets=False), old_merges=True)
    yield "gpt2_prefix", dict(pre=byte_level(True, True))
    yield "llama3", dict(pre=pre_tokenizers.Sequence([split(LLAMA3), byte_level(False)]), ignore_merges=True, bos="<|endoftext|>")
    yield "qwen", dict(norm=normalizers.NFC(), pre=pre_tokenizers.Sequence([split(QWEN), byte_level(False)]), post=processors.ByteLevel(trim_offsets=False))
    yield "smollm", dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level(True)]))
    yield "o200k", dict(pre=pre_tokenizers.Sequence([split(O200K), byte_level(False)]))
    yield "deepseek", dict(norm=normalizers.Sequence([]), pre=pre_tokenizers.Sequence([*[split(p) for p in DEEPSEEK], byte_level(False)]))
    yield "behaviours", dict(norm=normalizers.NFKC(), pre=pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=False), split(r"[,;]", "merged_with_previous"), split(r"\(", "merged_with_next"),
        split(r"[a-z]+", "contiguous", True), pre_tokenizers.Punctuation("isolated"), split(r"#+", "removed"), byte_level(False)]))


def build(pre, norm=None, post=None, bos=None, ignore_merges=False, old_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if norm is not None:
        tokenizer.normalizer = norm
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    tokenizer.add_tokens(["[X]", "[XY]", AddedToken("word", single_word=True), AddedToken("caf\u00e9", normalized=True)])
    tokenizer.add_special_tokens([AddedToken("[pad]", lstrip=True, rstrip=True)])
    if bos:
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, tokenizer.token_to_id(bos))])])
    elif post is not None:
        tokenizer.post_processor = post
    content = json.loads(tokenizer.to_str())
    if old_merges:
        content["model"]["merges"] = [" ".join(m) for m in content["model"]["merges"]]
    return content


def golden(tokenizer):
    ids = [tokenizer.encode(text).ids for text in TEXTS]
    return {"texts": TEXTS, "ids": ids, "plain_ids": [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS],
            "decoded": [tokenizer.decode(i, skip_special_tokens=False) for i in ids]}


def write(path, content):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(content, f, separators=(",", ":"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--also", action="append", default=[])
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    for name, how in kinds():
        content = build(**how)
        write(f"{arguments.out}/{name}.json", content)
        write(f"{arguments.out}/{name}.golden.json", golden(Tokenizer.from_str(json.dumps(content))))
    for also in arguments.also:
        name, folder = also.split("=", 1)
        write(f"{arguments.out}/{name}.golden.json", golden(Tokenizer.from_file(f"{folder}/tokenizer.json")))


if __name__ == "__main__":
    main()
