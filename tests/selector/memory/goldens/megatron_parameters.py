# Makes megatron_parameters.jsonl: parameters on each pipeline rank of tiny models as Megatron itself builds them.
#   python megatron_parameters.py MEGATRON_LM_CHECKOUT > megatron_parameters.jsonl
# (Megatron-LM d98e8a64dd, torch 2.15 on CPU; process groups of the "fake" backend, each case as rank r of its world.)
import json, os, sys

LLAMA = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=64, intermediate_size=192, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=2,
             vocab_size=1000, max_position_embeddings=128, rms_norm_eps=1e-5, hidden_act="silu", tie_word_embeddings=False)
GPT2 = dict(model_type="gpt2", architectures=["GPT2LMHeadModel"], n_embd=64, n_layer=8, n_head=8, n_positions=128, vocab_size=1000, tie_word_embeddings=True)
MIXTRAL = dict(LLAMA, model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=8, num_experts_per_tok=2, num_key_value_heads=8)
DEEPSEEK = dict(model_type="deepseek_v3", architectures=["DeepseekV3ForCausalLM"], hidden_size=64, intermediate_size=192, moe_intermediate_size=48, num_hidden_layers=8,
                num_attention_heads=8, num_key_value_heads=8, vocab_size=1000, max_position_embeddings=128, first_k_dense_replace=1, n_routed_experts=8, n_shared_experts=1,
                num_experts_per_tok=2, q_lora_rank=32, kv_lora_rank=16, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, rms_norm_eps=1e-6, hidden_act="silu",
                tie_word_embeddings=False)
CASES = []
def case(config, world, tp=1, pp=1, ep=1, etp=None, vp=1, **megatron):
    CASES.append(dict(config=config, world=world, tp=tp, pp=pp, ep=ep, etp=etp, vp=vp, megatron=megatron))
case(LLAMA, 1)
case(dict(LLAMA, tie_word_embeddings=True), 8, tp=2, pp=4)
case(LLAMA, 8, tp=8)                                   # more tensor parallel ranks than key/value heads
case(LLAMA, 8, tp=2, pp=2, vp=2)
case(LLAMA, 4, pp=4, decoder_first_pipeline_num_layers=1, decoder_last_pipeline_num_layers=3)
case(dict(LLAMA, num_hidden_layers=6), 4, pp=4, account_for_embedding_in_pipeline_split=True, account_for_loss_in_pipeline_split=True)
case(dict(LLAMA, vocab_size=1001), 8, tp=4, make_vocab_size_divisible_by=64)
case(GPT2, 1)
case(GPT2, 8, tp=4, pp=2)
case(MIXTRAL, 8, tp=2, ep=4, etp=2)
case(MIXTRAL, 8, tp=2, ep=4, etp=1)
case(MIXTRAL, 8, tp=4, ep=1, etp=1)
case(MIXTRAL, 16, tp=2, pp=2, ep=2)
case(DEEPSEEK, 8, tp=2, pp=2, ep=4, etp=1)
case(DEEPSEEK, 4, tp=4, ep=2, etp=1)
case(DEEPSEEK, 8, pp=4, ep=2, mtp_num_layers=1)

def one(case, rank):
    import torch
    torch.Tensor.cuda = lambda t, *a, **k: t          # Megatron moves tied weights to a GPU that is not there
    torch.cuda.Stream = lambda *a, **k: None
    torch.cuda.current_device = lambda: torch.device("cpu")
    from torch.testing._internal.distributed.fake_pg import FakeStore
    c, m = case["config"], case["megatron"]
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=case["world"])
    from megatron.core import parallel_state as ps
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    import megatron.core.transformer.multi_token_prediction as prediction
    prediction.is_inference_column_parallel_linear = lambda module: False   # asks for classes of Transformer Engine
    init = DotProductAttention.__init__                # has no parameters; only Transformer Engine's takes these widths
    DotProductAttention.__init__ = lambda self, *a, k_channels=None, v_channels=None, **k: init(self, *a, **k)
    from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
    ps.initialize_model_parallel(case["tp"], case["pp"], case["vp"] if case["vp"] > 1 else None, expert_model_parallel_size=case["ep"], expert_tensor_parallel_size=case["etp"], create_gloo_process_groups=False)
    gpt2, mla = c["model_type"] == "gpt2", "kv_lora_rank" in c
    layers = c["n_layer"] if gpt2 else c["num_hidden_layers"]
    a = dict(num_layers=layers, hidden_size=c["n_embd"] if gpt2 else c["hidden_size"], num_attention_heads=c["n_head"] if gpt2 else c["num_attention_heads"], use_cpu_initialization=True,
             perform_initialization=False, tensor_model_parallel_size=case["tp"], pipeline_model_parallel_size=case["pp"], expert_model_parallel_size=case["ep"], sequence_parallel=False,
             virtual_pipeline_model_parallel_size=case["vp"] if case["vp"] > 1 else None, pipeline_dtype=torch.float32, bf16=False, params_dtype=torch.float32,
             ffn_hidden_size=4 * c["n_embd"] if gpt2 else c["intermediate_size"], add_bias_linear=gpt2, gated_linear_unit=not gpt2, normalization="LayerNorm" if gpt2 else "RMSNorm",
             num_query_groups=c.get("num_key_value_heads"), persist_layer_norm=False, bias_activation_fusion=False, apply_rope_fusion=False, gradient_accumulation_fusion=False,
             expert_tensor_parallel_size=case["etp"] or case["tp"],
             num_layers_in_first_pipeline_stage=m.get("decoder_first_pipeline_num_layers"), num_layers_in_last_pipeline_stage=m.get("decoder_last_pipeline_num_layers"),
             account_for_embedding_in_pipeline_split=m.get("account_for_embedding_in_pipeline_split", False), account_for_loss_in_pipeline_split=m.get("account_for_loss_in_pipeline_split", False),
             mtp_num_layers=m.get("mtp_num_layers"))
    if not gpt2: a["activation_func"] = torch.nn.functional.silu
    experts = c.get("num_local_experts") or c.get("n_routed_experts")
    if experts:
        a.update(num_moe_experts=experts, moe_ffn_hidden_size=c.get("moe_intermediate_size", c.get("intermediate_size")), moe_router_topk=2, moe_token_dispatcher_type="alltoall", moe_router_load_balancing_type="none")
    if mla:
        a.update(q_lora_rank=32, kv_lora_rank=16, qk_head_dim=16, qk_pos_emb_head_dim=8, v_head_dim=16, qk_layernorm=True, multi_latent_attention=True, num_query_groups=8,
                 moe_shared_expert_intermediate_size=48, moe_layer_freq=[0] + [1] * 7, rope_type="rope", moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid")
    config = (MLATransformerConfig if mla else TransformerConfig)(**a)
    multiple = m.get("make_vocab_size_divisible_by", 128) * case["tp"]
    vocabulary = (c["vocab_size"] + multiple - 1) // multiple * multiple
    total = [0, 0]
    for v in range(case["vp"]):
        chunk = v if case["vp"] > 1 else None
        if chunk is not None: ps.set_virtual_pipeline_model_parallel_rank(v)
        first = ps.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk); last = ps.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk)
        spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=chunk)
        extra = {}
        if config.mtp_num_layers:
            extra["mtp_block_spec"] = get_gpt_mtp_block_spec(config, get_gpt_decoder_block_spec(config, use_transformer_engine=False, vp_stage=chunk) if last else spec, use_transformer_engine=False, vp_stage=chunk)
        model = GPTModel(config, spec, vocabulary, 128, pre_process=first, post_process=last, share_embeddings_and_output_weights=c["tie_word_embeddings"],
                         position_embedding_type="learned_absolute" if gpt2 else "rope", vp_stage=chunk, **extra)
        for name, p in model.named_parameters():
            total[".experts." in name and ".shared_experts." not in name] += p.numel()
    return total

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    import megatron.core.models.gpt.gpt_model, torch.testing._internal.distributed.fake_pg  # once, for all the forks
    for k in CASES[int(sys.argv[2]) if len(sys.argv) > 2 else 0:]:
        stages = []
        for stage in range(k["pp"]):
            read, write = os.pipe()
            if os.fork() == 0:
                os.write(write, json.dumps(one(k, stage * (k["world"] // k["pp"]))).encode())
                os._exit(0)
            os.close(write)
            os.wait()
            with os.fdopen(read) as text: stages.append(json.loads(text.read()))
        print(json.dumps(dict(k, stages=[dict(dense=d, experts=e) for d, e in stages])), flush=True)
