# Prints what autograd keeps of mixture-of-experts layers as transformers writes them (experts_test.cpp holds the numbers): bytes of
# distinct storages that are neither weights nor the input, after one forward in bf16 on CPU.
#   python experts_kept.py MODEL            (transformers on the path)
import sys, torch, transformers
from transformers import AutoConfig
h, f, E, k, T = 256, 512, 8, 2, 384
which = sys.argv[1]
torch.manual_seed(0)
if which == "mixtral":
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock as B
    c = AutoConfig.for_model("mixtral", hidden_size=h, intermediate_size=f, num_local_experts=E, num_experts_per_tok=k)
elif which == "qwen3_moe":
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock as B
    c = AutoConfig.for_model("qwen3_moe", hidden_size=h, moe_intermediate_size=f, num_experts=E, num_experts_per_tok=k, norm_topk_prob=True)
elif which == "gpt_oss":
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssMLP as B
    c = AutoConfig.for_model("gpt_oss", hidden_size=h, intermediate_size=f, num_local_experts=E, num_experts_per_tok=k)
elif which == "deepseek_v3":
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE as B
    c = AutoConfig.for_model("deepseek_v3", hidden_size=h, moe_intermediate_size=f, n_routed_experts=E, num_experts_per_tok=k, n_shared_experts=1, n_group=1, topk_group=1)
if hasattr(c, "_experts_implementation") and transformers.__version__ >= "5": c._experts_implementation = "grouped_mm"
block = B(c).to(torch.bfloat16).train()
for p in block.parameters(): torch.nn.init.normal_(p, std=0.05)
x = torch.randn(1, T, h).to(torch.bfloat16).requires_grad_()
own = {p.untyped_storage().data_ptr() for p in block.parameters()} | {x.untyped_storage().data_ptr()} | {b.untyped_storage().data_ptr() for b in block.buffers()}
kept = {}
hold = []
def pack(t):
    s = t.untyped_storage()
    if s.data_ptr() not in own and s.nbytes() > 0: kept[s.data_ptr()] = s.nbytes(); hold.append(t)
    return t
with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
    y = block(x)
y = y[0] if isinstance(y, tuple) else y
print(which, transformers.__version__, torch.__version__, "kept", sum(kept.values()), "per routed token", sum(kept.values()) / (k * T))
if len(sys.argv) > 2:
    from collections import Counter
    for (s, d), n in Counter((tuple(t.shape), str(t.dtype)) for t in hold).most_common(40): print(n, s, d)
