#!/usr/bin/env python3
"""Names and shapes of every parameter of small models, as transformers builds them; made with transformers 5.24 and torch 2.11.

    python make_names.py > names.json

Left out where transformers 5 names things unlike the published files: experts one by one, GPT-NeoX's embed_out, ViT and DINOv2; and where it ties what
they keep apart (T5 v1.1).
"""
import json
import torch
import transformers as T

BASE = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, vocab_size=112)
CASES = {
    "llama": (T.LlamaConfig, T.LlamaForCausalLM, dict(BASE, num_key_value_heads=2, attention_bias=True, mlp_bias=True)),
    "mistral": (T.MistralConfig, T.MistralForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=24)),
    "qwen2": (T.Qwen2Config, T.Qwen2ForCausalLM, dict(BASE, num_key_value_heads=2, tie_word_embeddings=True)),
    "qwen3": (T.Qwen3Config, T.Qwen3ForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=32)),
    "gemma": (T.GemmaConfig, T.GemmaForCausalLM, dict(BASE, num_key_value_heads=1, head_dim=32)),
    "gemma2": (T.Gemma2Config, T.Gemma2ForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=32)),
    "gemma3_text": (T.Gemma3TextConfig, T.Gemma3ForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=32)),
    "phi": (T.PhiConfig, T.PhiForCausalLM, dict(BASE, qk_layernorm=True)),
    "phi3": (T.Phi3Config, T.Phi3ForCausalLM, dict(BASE, num_key_value_heads=2, pad_token_id=0)),
    "gpt2": (T.GPT2Config, T.GPT2LMHeadModel, dict(n_embd=64, n_layer=3, n_head=4, vocab_size=112, n_positions=50, n_inner=80)),
    "gpt_bigcode": (T.GPTBigCodeConfig, T.GPTBigCodeForCausalLM, dict(n_embd=64, n_layer=2, n_head=4, vocab_size=112, n_positions=50)),
    "gpt_neo": (T.GPTNeoConfig, T.GPTNeoForCausalLM, dict(hidden_size=64, num_layers=2, attention_types=[[["global", "local"], 1]], num_heads=4, vocab_size=112, max_position_embeddings=50)),
    "gptj": (T.GPTJConfig, T.GPTJForCausalLM, dict(n_embd=64, n_layer=2, n_head=4, vocab_size=112, n_positions=50, rotary_dim=8)),
    "opt": (T.OPTConfig, T.OPTForCausalLM, dict(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=112, max_position_embeddings=50, word_embed_proj_dim=64)),
    "opt-350m": (T.OPTConfig, T.OPTForCausalLM, dict(hidden_size=64, ffn_dim=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=112, max_position_embeddings=50, word_embed_proj_dim=32,
                                                      do_layer_norm_before=False)),
    "bloom": (T.BloomConfig, T.BloomForCausalLM, dict(hidden_size=64, n_layer=2, n_head=4, vocab_size=112)),
    "falcon-7b": (T.FalconConfig, T.FalconForCausalLM, dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=112)),
    "falcon-rw": (T.FalconConfig, T.FalconForCausalLM, dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=112, alibi=True, bias=True, multi_query=False, parallel_attn=False)),
    "falcon-40b": (T.FalconConfig, T.FalconForCausalLM, dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2, vocab_size=112, new_decoder_architecture=True)),
    "falcon-11b": (T.FalconConfig, T.FalconForCausalLM, dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_kv_heads=2, vocab_size=112, new_decoder_architecture=True, num_ln_in_parallel_attn=1)),
    "mpt": (T.MptConfig, T.MptForCausalLM, dict(d_model=64, n_layers=2, n_heads=4, vocab_size=112, max_seq_len=50)),
    "starcoder2": (T.Starcoder2Config, T.Starcoder2ForCausalLM, dict(BASE, num_key_value_heads=2)),
    "stablelm": (T.StableLmConfig, T.StableLmForCausalLM, dict(BASE, num_key_value_heads=2, use_qkv_bias=True)),
    "stablelm-12b": (T.StableLmConfig, T.StableLmForCausalLM, dict(BASE, num_key_value_heads=2, use_parallel_residual=True, qk_layernorm=True)),
    "olmo": (T.OlmoConfig, T.OlmoForCausalLM, dict(BASE, pad_token_id=1, eos_token_id=2)),
    "olmo2": (T.Olmo2Config, T.Olmo2ForCausalLM, dict(BASE, num_key_value_heads=2, pad_token_id=1, eos_token_id=2)),
    "olmo3": (T.Olmo3Config, T.Olmo3ForCausalLM, dict(BASE, num_key_value_heads=2, pad_token_id=1, eos_token_id=2)),
    "nemotron": (T.NemotronConfig, T.NemotronForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=16)),
    "glm": (T.GlmConfig, T.GlmForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=16, attention_bias=True, pad_token_id=1, eos_token_id=2)),
    "glm4": (T.Glm4Config, T.Glm4ForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=16, attention_bias=True, pad_token_id=1, eos_token_id=2)),
    "gpt_oss": (T.GptOssConfig, T.GptOssForCausalLM, dict(BASE, num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, pad_token_id=1, eos_token_id=2)),
    "bert": (T.BertConfig, T.BertForMaskedLM, dict(BASE, max_position_embeddings=50)),
    "bert-tokens": (T.BertConfig, T.BertForTokenClassification, dict(BASE, max_position_embeddings=50)),
    "bert-pairs": (T.BertConfig, T.BertForPreTraining, dict(BASE, max_position_embeddings=50)),
    "roberta": (T.RobertaConfig, T.RobertaForMaskedLM, dict(BASE, max_position_embeddings=50)),
    "roberta-sequence": (T.RobertaConfig, T.RobertaForSequenceClassification, dict(BASE, max_position_embeddings=50)),
    "t5": (T.T5Config, T.T5ForConditionalGeneration, dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_decoder_layers=3, num_heads=4, vocab_size=112)),
    "t5-v1_1": (T.T5Config, T.T5ForConditionalGeneration, dict(d_model=64, d_kv=16, d_ff=96, num_layers=2, num_heads=4, vocab_size=112, feed_forward_proj="gated-gelu")),
}

out = {}
for name, (config_class, model_class, sizes) in CASES.items():
    with torch.device("meta"):
        model = model_class(config_class(**sizes))
    config = dict(sizes, model_type=config_class.model_type, architectures=[model_class.__name__])
    out[name] = {"config": config, "parameters": {n: list(p.shape) for n, p in model.named_parameters()}}
print("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v, separators=(',', ':'))}" for k, v in out.items()) + "}")
