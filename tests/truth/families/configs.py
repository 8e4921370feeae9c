# The configurations that measure.py runs: one a family, real ratios, a few layers. `python3 configs.py` writes configs.json, which
# the C++ test reads too.
import json
import os

H, L, HEADS, KV, FFN, V, POS = 1024, 4, 16, 4, 2816, 32000, 4096
llama = dict(hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, num_key_value_heads=KV, intermediate_size=FFN, vocab_size=V,
             max_position_embeddings=POS, hidden_act="silu", rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, attention_dropout=0.0)


def like(base, architecture, model_type, **changes):
    d = dict(base, architectures=[architecture], model_type=model_type, **changes)
    return {k: v for k, v in d.items() if v is not ...}


C = {}
C["llama"] = like(llama, "LlamaForCausalLM", "llama")
C["mistral"] = like(llama, "MistralForCausalLM", "mistral", sliding_window=None, head_dim=64)
C["mistral_window"] = like(llama, "MistralForCausalLM", "mistral", sliding_window=512, head_dim=64)
C["qwen2"] = like(llama, "Qwen2ForCausalLM", "qwen2", use_sliding_window=False, sliding_window=None)
C["qwen3"] = like(llama, "Qwen3ForCausalLM", "qwen3", head_dim=128, use_sliding_window=False, sliding_window=None)
C["gemma"] = like(llama, "GemmaForCausalLM", "gemma", head_dim=256, num_attention_heads=8, num_key_value_heads=1, intermediate_size=8192,
                  hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True)
C["gemma2"] = like(llama, "Gemma2ForCausalLM", "gemma2", head_dim=128, num_attention_heads=8, num_key_value_heads=4, intermediate_size=4096,
                   hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, sliding_window=512, query_pre_attn_scalar=128,
                   attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
C["gemma3"] = like(llama, "Gemma3ForCausalLM", "gemma3_text", head_dim=256, num_attention_heads=4, num_key_value_heads=1, intermediate_size=6912,
                   hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, sliding_window=512, query_pre_attn_scalar=256, num_hidden_layers=6)
C["phi"] = like(llama, "PhiForCausalLM", "phi", num_key_value_heads=16, intermediate_size=4096, hidden_act="gelu_new", partial_rotary_factor=0.5,
                resid_pdrop=0.1, embd_pdrop=0.0)
C["phi3"] = like(llama, "Phi3ForCausalLM", "phi3", pad_token_id=0, sliding_window=None, original_max_position_embeddings=POS)
C["stablelm"] = like(llama, "StableLmForCausalLM", "stablelm", num_key_value_heads=16, partial_rotary_factor=0.25, use_qkv_bias=False)
C["starcoder2"] = like(llama, "Starcoder2ForCausalLM", "starcoder2", intermediate_size=4096, hidden_act="gelu_pytorch_tanh", sliding_window=None,
                       residual_dropout=0.1, embedding_dropout=0.1, attention_dropout=0.1, tie_word_embeddings=True)
C["olmo"] = like(llama, "OlmoForCausalLM", "olmo", num_key_value_heads=16)
C["olmo2"] = like(llama, "Olmo2ForCausalLM", "olmo2", num_key_value_heads=16)
C["olmo3"] = like(llama, "Olmo3ForCausalLM", "olmo3", sliding_window=512, pad_token_id=0, num_hidden_layers=8)
C["glm"] = like(llama, "GlmForCausalLM", "glm", head_dim=64, partial_rotary_factor=0.5, attention_bias=True, pad_token_id=0)
C["glm4"] = like(llama, "Glm4ForCausalLM", "glm4", head_dim=64, partial_rotary_factor=0.5, attention_bias=True, pad_token_id=0)
C["nemotron"] = like(llama, "NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5, partial_rotary_factor=0.5, intermediate_size=4096, head_dim=64)
gpt = dict(n_embd=H, n_layer=L, n_head=HEADS, n_positions=2048, vocab_size=V)
C["gpt2"] = like(gpt, "GPT2LMHeadModel", "gpt2", activation_function="gelu_new")
C["gptj"] = like(gpt, "GPTJForCausalLM", "gptj", rotary_dim=32, activation_function="gelu_new")
C["gpt_bigcode"] = like(gpt, "GPTBigCodeForCausalLM", "gpt_bigcode", activation_function="gelu_pytorch_tanh", multi_query=True)
C["gpt_neo"] = like({}, "GPTNeoForCausalLM", "gpt_neo", hidden_size=H, num_layers=L, num_heads=HEADS, vocab_size=V, max_position_embeddings=2048,
                    attention_types=[[["global", "local"], 2]], window_size=256)
C["gpt_neox"] = like({}, "GPTNeoXForCausalLM", "gpt_neox", hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, intermediate_size=4096, vocab_size=V,
                     max_position_embeddings=2048, rotary_pct=0.25, use_parallel_residual=True)
C["opt"] = like({}, "OPTForCausalLM", "opt", hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, ffn_dim=4096, vocab_size=V, word_embed_proj_dim=H,
                max_position_embeddings=2048, dropout=0.1)
C["bloom"] = like({}, "BloomForCausalLM", "bloom", hidden_size=H, n_layer=L, n_head=HEADS, vocab_size=V)
C["mpt"] = like({}, "MptForCausalLM", "mpt", d_model=H, n_heads=HEADS, n_layers=L, expansion_ratio=4, max_seq_len=2048, vocab_size=V)
C["falcon"] = like({}, "FalconForCausalLM", "falcon", hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, num_kv_heads=4, new_decoder_architecture=True,
                   bias=False, parallel_attn=True, alibi=False, vocab_size=V, max_position_embeddings=2048)
C["falcon_7b"] = like({}, "FalconForCausalLM", "falcon", hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, multi_query=True, new_decoder_architecture=False,
                      bias=False, parallel_attn=True, alibi=False, vocab_size=V, max_position_embeddings=2048)
bert = dict(hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, intermediate_size=4096, vocab_size=V, max_position_embeddings=2048)
C["bert"] = like(bert, "BertForMaskedLM", "bert")
C["bert_classifier"] = like(bert, "BertForSequenceClassification", "bert", num_labels=4)
C["roberta"] = like(bert, "RobertaForMaskedLM", "roberta", max_position_embeddings=2050, pad_token_id=1)
C["t5"] = like({}, "T5ForConditionalGeneration", "t5", decoder_start_token_id=0, d_model=H, num_layers=L, num_heads=HEADS, d_kv=64, d_ff=4096, vocab_size=V)
C["t5_gated"] = like({}, "T5ForConditionalGeneration", "t5", decoder_start_token_id=0, d_model=H, num_layers=L, num_heads=HEADS, d_kv=64, d_ff=FFN, vocab_size=V,
                     feed_forward_proj="gated-gelu", tie_word_embeddings=False)
vision = dict(hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, image_size=224, patch_size=14, num_channels=3)
C["vit"] = like(vision, "ViTForImageClassification", "vit", intermediate_size=4096)
C["dinov2"] = like(vision, "Dinov2ForImageClassification", "dinov2", use_swiglu_ffn=True)
C["dinov2_mlp"] = like(vision, "Dinov2ForImageClassification", "dinov2", use_swiglu_ffn=False)
moe = dict(llama, num_experts_per_tok=2)
C["mixtral"] = like(moe, "MixtralForCausalLM", "mixtral", num_local_experts=8, intermediate_size=1792, sliding_window=None, head_dim=64)
C["qwen2_moe"] = like(moe, "Qwen2MoeForCausalLM", "qwen2_moe", num_experts=16, moe_intermediate_size=704, shared_expert_intermediate_size=2816)
C["qwen3_moe"] = like(moe, "Qwen3MoeForCausalLM", "qwen3_moe", num_experts=16, moe_intermediate_size=704, head_dim=128)
C["phimoe"] = like(moe, "PhimoeForCausalLM", "phimoe", num_local_experts=8, intermediate_size=960, sliding_window=None, attention_bias=True, lm_head_bias=True, head_dim=64)
C["gpt_oss"] = like(moe, "GptOssForCausalLM", "gpt_oss", num_local_experts=8, intermediate_size=1024, sliding_window=128, head_dim=64, attention_bias=True,
                    layer_types=["sliding_attention", "full_attention"] * (L // 2))
mla = dict(llama, num_key_value_heads=16, q_lora_rank=384, kv_lora_rank=256, qk_nope_head_dim=64, qk_rope_head_dim=32, v_head_dim=64)
C["deepseek_v3"] = like(mla, "DeepseekV3ForCausalLM", "deepseek_v3", moe_intermediate_size=704, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
                        n_group=4, topk_group=2, first_k_dense_replace=2)
C["deepseek_v2"] = like(mla, "DeepseekV2ForCausalLM", "deepseek_v2", moe_intermediate_size=704, n_routed_experts=16, n_shared_experts=1, num_experts_per_tok=4,
                        first_k_dense_replace=2, topk_method="greedy", q_lora_rank=None)
C["minicpm3"] = like(mla, "MiniCPM3ForCausalLM", "minicpm3", scale_emb=12, dim_model_base=256, scale_depth=1.4)
C["mimo"] = like(llama, "MiMoForCausalLM", "mimo", attention_bias=True, head_dim=64, num_nextn_predict_layers=1)
C["llama4"] = like(llama, "Llama4ForCausalLM", "llama4_text", head_dim=64, intermediate_size=1408, intermediate_size_mlp=2816, num_local_experts=8, num_experts_per_tok=1,
                   interleave_moe_layer_step=2, use_qk_norm=True, attention_chunk_size=8192)
C["gemma4"] = like(llama, "Gemma4ForCausalLM", "gemma4_text", head_dim=128, global_head_dim=256, num_attention_heads=8, num_key_value_heads=2, intermediate_size=4096,
                   hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True, sliding_window=512, num_hidden_layers=6)
C["nemotron_h"] = like({}, "NemotronHForCausalLM", "nemotron_h", hidden_size=H, num_hidden_layers=6, hybrid_override_pattern="M-M*M-", num_attention_heads=16,
                       attention_head_dim=64, head_dim=64, num_key_value_heads=4, intermediate_size=4096, vocab_size=V, mamba_num_heads=32, mamba_head_dim=64, n_groups=8,
                       ssm_state_size=128, conv_kernel=4, chunk_size=128, expand=2, mlp_hidden_act="relu2", max_position_embeddings=POS, tie_word_embeddings=False)
C["dbrx"] = like({}, "DbrxForCausalLM", "dbrx", d_model=H, n_heads=HEADS, n_layers=L, max_seq_len=2048, vocab_size=V,
                 attn_config=dict(clip_qkv=8, kv_n_heads=4, rope_theta=500000, model_type=""),
                 ffn_config=dict(ffn_hidden_size=1792, moe_num_experts=8, moe_top_k=2, model_type="", ffn_act_fn={"name": "silu"}))
C["baichuan"] = like(llama, "BaichuanForCausalLM", "baichuan", num_key_value_heads=...)
C["chatglm"] = like({}, "ChatGLMForConditionalGeneration", "chatglm", hidden_size=H, num_layers=L, num_attention_heads=HEADS, kv_channels=64, ffn_hidden_size=FFN,
                    padded_vocab_size=V, seq_length=POS, multi_query_attention=True, multi_query_group_num=2, add_bias_linear=False, add_qkv_bias=True, rmsnorm=True,
                    post_layer_norm=True, attention_dropout=0.0, hidden_dropout=0.0)
C["qwen"] = like({}, "QWenLMHeadModel", "qwen", hidden_size=H, num_hidden_layers=L, num_attention_heads=HEADS, intermediate_size=2 * FFN, vocab_size=V, kv_channels=64,
                 seq_length=2048, max_position_embeddings=8192, layer_norm_epsilon=1e-6, no_bias=True, attn_dropout_prob=0.0, emb_dropout_prob=0.0)

if __name__ == "__main__":
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in C.items()) + "\n}\n")
