# Writes fsdp1.jsonl: `fakegpu fsdp1.py fsdp1.jsonl [CASE...]`, rank 0 of four (torch 2.6.0, transformers 4.51.3, peft 0.15.2).
import sys; OUT=sys.argv[1]; ONLY=sys.argv[2:]; sys.argv=[sys.argv[0]]
import functools
from peaks import *
import torch.distributed as dist, transformers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy, BackwardPrefetch, CPUOffload
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy, size_based_auto_wrap_policy
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
import peft
N=4
B=torch.bfloat16
MP=MixedPrecision(param_dtype=B,reduce_dtype=B,buffer_dtype=B); MP32=MixedPrecision(param_dtype=B,reduce_dtype=torch.float32,buffer_dtype=B)
pol=functools.partial(transformer_auto_wrap_policy,transformer_layer_cls={LlamaDecoderLayer})
def W(policy=pol,**k):
    k.setdefault('use_orig_params',True)
    return lambda m: FSDP(m,auto_wrap_policy=policy,device_id=0,**k)
def peft(bf16=True,targets=("q_proj","v_proj")):
    def s(m):
        from peft import LoraConfig,get_peft_model
        return get_peft_model(m,LoraConfig(r=8,target_modules=list(targets),lora_dropout=0.0),autocast_adapter_dtype=not bf16)
    return s
def peft_wrap(**k):
    def w(m):
        from peft.utils.other import fsdp_auto_wrap_policy
        os.environ['FSDP_TRANSFORMER_CLS_TO_WRAP']='LlamaDecoderLayer'
        return FSDP(m,auto_wrap_policy=fsdp_auto_wrap_policy(m),device_id=0,**k)
    return w
NR={"kind":"full","reentrant":False}; RE={"kind":"full","reentrant":True}
def job(method="full",precision="bf16",opt=None): return {"model":"llama_small.json","method":method,"sequence_length":512,"precision":precision,"optimizer":opt or {"name":"adamw","implementation":"foreach"},"attention":"sdpa","loss":"plain","framework":{"name":"fsdp1","version":torch.__version__.split('+')[0],"trainer":"transformers","trainer_version":transformers.__version__}}
def plan(ck="none",stage=3,shard=N,rep=1,acc=1,nosync=False,fsdp=None,**k): 
    return {"gpu":"a100_sxm_80gb","gpus_per_node":N,"sharding":{"stage":stage,"shard_degree":shard,"replicate_degree":rep},"micro_batch":1,"gradient_accumulation":acc,"accumulate_without_sync":nosync,"activation_checkpointing":ck,"fsdp":fsdp or {},**k}
mixed="bf16-mixed"; m16={"parameters":"fp32","master":"none","compute":"bf16","gradients":"fp32","reduce":"bf16"}
lora={"kind":"lora","rank":8,"alpha":16,"dropout":0.0,"targets":["q_proj","v_proj"],"adapter_dtype":"bf16"}
lora32={**lora,"adapter_dtype":"fp32"}
D=dict(b=1,s=512)
C={
 'full_bf16':(dict(wrap=W()),job(),plan()),
 'full_bf16_flat':(dict(wrap=W(use_orig_params=False),opt='adamw'),job(opt={"name":"adamw"}),plan(fsdp={"use_orig_params":False})),
 'full_bf16_ckpt':(dict(wrap=W(),ckpt='non'),job(),plan(NR)),
 'full_bf16_ckpt_re':(dict(wrap=W(),ckpt='reentrant'),job(),plan(RE)),
 'full_mp':(dict(wrap=W(mixed_precision=MP),precision='fp32'),job(precision=m16),plan()),
 'full_mp32':(dict(wrap=W(mixed_precision=MP32),precision='fp32'),job(precision=mixed),plan()),
 'full_mp32_ckpt':(dict(wrap=W(mixed_precision=MP32),precision='fp32',ckpt='non'),job(precision=mixed),plan(NR)),
 'full_mp_autocast':(dict(wrap=W(mixed_precision=MP),precision='fp32',autocast=True),job(precision={**m16,"autocast":True}),plan()),
 'grad_op':(dict(wrap=W(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)),job(),plan(fsdp={"sharding_strategy":"SHARD_GRAD_OP"})),
 'no_shard':(dict(wrap=W(sharding_strategy=ShardingStrategy.NO_SHARD)),job(),plan(stage=0,shard=1,rep=N,fsdp={"sharding_strategy":"NO_SHARD"})),
 'prefetch_post':(dict(wrap=W(backward_prefetch=BackwardPrefetch.BACKWARD_POST)),job(),plan(fsdp={"backward_prefetch":"BACKWARD_POST"})),
 'prefetch_none':(dict(wrap=W(backward_prefetch=None)),job(),plan(fsdp={"backward_prefetch":"NO_PREFETCH"})),
 'prefetch_none_ckpt':(dict(wrap=W(backward_prefetch=None),ckpt='non'),job(),plan(NR,fsdp={"backward_prefetch":"NO_PREFETCH"})),
 'no_limit':(dict(wrap=W(limit_all_gathers=False)),job(),plan(fsdp={"limit_all_gathers":False})),
 'accum':(dict(wrap=W(),accum=2),job(),plan(acc=2)),
 'accum_no_sync':(dict(wrap=W(),accum=2,nosync=True),job(),plan(acc=2,nosync=True)),
 'accum_no_sync_mp32':(dict(wrap=W(mixed_precision=MP32),precision='fp32',accum=2,nosync=True),job(precision=mixed),plan(acc=2,nosync=True)),
 'cpu_offload':(dict(wrap=W(cpu_offload=CPUOffload(offload_params=True))),job(opt={"name":"adamw","implementation":"cpu"}),plan(offload={"parameters":"cpu","gradients":"cpu","optimizer":"cpu"})),
 'lora_peft_wrap':(dict(setup=peft(),wrap=peft_wrap()),job(lora),plan(fsdp={"use_orig_params":False})),
 'lora_peft_wrap_ckpt':(dict(setup=peft(),wrap=peft_wrap(),ckpt='non'),job(lora),plan(NR,fsdp={"use_orig_params":False})),
 'lora_peft_wrap_ckpt_re':(dict(setup=peft(),wrap=peft_wrap(),ckpt='reentrant'),job(lora),plan(RE,fsdp={"use_orig_params":False})),
 'lora_peft_wrap_32':(dict(setup=peft(False),wrap=peft_wrap()),job(lora32),plan(fsdp={"use_orig_params":False})),
 'lora_peft_wrap_mp_autocast':(dict(setup=peft(False),wrap=peft_wrap(mixed_precision=MP),autocast=True),job(lora32,{"parameters":"bf16","master":"none","compute":"bf16","autocast":True}),plan(fsdp={"use_orig_params":False})),
}
def each(C,out,only,n_ranks=N,defaults=D):
    open(out,'w').close()
    for n,(a,j,p) in C.items():
        if only and n not in only: continue
        pid=os.fork()          # a process a case: FSDP leaves cycles that hold memory
        if pid==0:
            try:
                dist.init_process_group('nccl',store=dist.HashStore(),rank=0,world_size=n_ranks); torch.cuda.set_device(0)
                r=run(**{**defaults,**a})
                with open(out,'a') as f: f.write(json.dumps({"name":n,"job":j,"plan":p,"peaks":r})+"\n")
            except Exception as e:
                import traceback; print(n); traceback.print_exc(limit=-2)
            sys.stdout.flush(); os._exit(0)
        os.waitpid(pid,0)
if __name__=='__main__': each(C,OUT,ONLY)
