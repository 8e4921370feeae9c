# What a layer of Megatron-LM's own implementation keeps until backward (megatron_test.cpp holds the numbers), on the pretended GPU of
# tests/truth/fake_gpu: torch 2.11, Megatron-LM d98e8a64dd, no Apex (softmax in torch).
#   python megatron_layer.py MEGATRON_LM_CHECKOUT
import sys, torch, os
os.environ["TORCHDYNAMO_DISABLE"]="1"
sys.path.insert(0, sys.argv[1])
store=torch.distributed.HashStore(); torch.distributed.init_process_group('nccl', store=store, rank=0, world_size=1); torch.cuda.set_device(0)
from megatron.core import parallel_state as ps
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig
ps.initialize_model_parallel(1,1,create_gloo_process_groups=False)
try: model_parallel_cuda_manual_seed(1)
except Exception as e: print('seed',e)
def run(L, llama):
    a=dict(num_layers=L,hidden_size=512,num_attention_heads=8,hidden_dropout=0.0 if llama else 0.1,attention_dropout=0.0 if llama else 0.1,ffn_hidden_size=2048,bf16=True,params_dtype=torch.bfloat16,pipeline_dtype=torch.bfloat16,gradient_accumulation_fusion=False,perform_initialization=False,persist_layer_norm=False)
    if llama: a.update(add_bias_linear=False,gated_linear_unit=True,activation_func=torch.nn.functional.silu,normalization="RMSNorm",num_query_groups=2,bias_activation_fusion=True,apply_rope_fusion=False)
    c=TransformerConfig(**a)
    m=GPTModel(c,get_gpt_layer_local_spec(normalization="RMSNorm" if llama else None),50304,1024,position_embedding_type="rope" if llama else "learned_absolute").cuda().bfloat16().train()
    ids=torch.zeros(4,1024,dtype=torch.int64,device='cuda'); pos=ids; mask=torch.zeros(1,1,1024,1024,dtype=torch.bool,device='cuda')
    torch.cuda.synchronize(); b=torch.cuda.memory_allocated()
    loss=m(ids,pos,mask,labels=ids)
    k=torch.cuda.memory_allocated()-b
    del loss,m
    return k
for llama in (False,True):
    run(2,llama)
    r=[run(L,llama) for L in (2,4)]
    print('llama' if llama else 'gpt','bytes a layer',(r[1]-r[0])//2)
