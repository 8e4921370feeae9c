# Writes lora.jsonl: `fakegpu lora.py lora.jsonl [CASE...]` (torch 2.6.0, transformers 4.51.3, peft 0.15.2).
import sys; OUT=sys.argv[1]; ONLY=sys.argv[2:] ; sys.argv=[sys.argv[0]]
from peaks import *
from peft import LoraConfig, IA3Config, get_peft_model
import peft, transformers
T=["q_proj","v_proj"]; ALL=["q_proj","k_proj","v_proj","o_proj","gate_proj","up_proj","down_proj"]
def L(**k): 
    k.setdefault('r',8); k.setdefault('target_modules',T); k.setdefault('lora_dropout',0.0)
    return lambda: LoraConfig(**k)
def nocast(f):
    def s(m):
        return get_peft_model(m,f(),autocast_adapter_dtype=False)
    return s
def ml(r=8,t=T,dropout=0.0,adt="fp32",**k): return {"kind":"lora","rank":r,"alpha":16,"dropout":dropout,"targets":t,"adapter_dtype":adt,**k}
full="full"
def job(method,precision="bf16",loss="plain",opt=None,s=1024,ver=None):
    return {"model":"llama_small.json","method":method,"sequence_length":s,"precision":precision,"optimizer":opt or {"name":"adamw","implementation":"foreach"},"attention":"sdpa","loss":loss,"framework":{"name":"ddp","trainer":"transformers","trainer_version":ver or transformers.__version__}}
def plan(ck="none",b=4): return {"gpu":"a100_sxm_80gb","gpus_per_node":1,"micro_batch":b,"activation_checkpointing":ck}
RE={"kind":"full","reentrant":True}; NR={"kind":"full","reentrant":False}
am={"parameters":"bf16","master":"none","compute":"bf16","autocast":True}
C={
 'full':(dict(method=None),job(full),plan()),
 'full_fp32':(dict(method=None,precision='fp32'),job(full,"fp32"),plan()),
 'full_autocast':(dict(method=None,precision='bf16-mixed',autocast=True),job(full,"bf16-mixed"),plan()),
 'full_ckpt':(dict(method=None,ckpt='non'),job(full),plan(NR)),
 'full_ckpt_re':(dict(method=None,ckpt='reentrant'),job(full),plan(RE)),
 'full_single':(dict(method=None,opt='adamw_single'),job(full,opt={"name":"adamw","implementation":"single"}),plan()),
 'full_fused':(dict(method=None,opt='adamw_fused'),job(full,opt={"name":"adamw","implementation":"fused"}),plan()),
 'lora_qv':(dict(method=L()),job(ml()),plan()),
 'lora_qv_bf16':(dict(method=None,setup=nocast(L())),job(ml(adt="bf16")),plan()),
 'lora_all':(dict(method=L(target_modules=ALL)),job(ml(t=ALL)),plan()),
 'lora_all_bf16':(dict(method=None,setup=nocast(L(target_modules=ALL))),job(ml(t=ALL,adt="bf16")),plan()),
 'lora_all_drop':(dict(method=L(target_modules=ALL,lora_dropout=0.1)),job(ml(t=ALL,dropout=0.1)),plan()),
 'lora_all_ckpt':(dict(method=L(target_modules=ALL),ckpt='non'),job(ml(t=ALL)),plan(NR)),
 'lora_all_ckpt_re':(dict(method=L(target_modules=ALL),ckpt='reentrant'),job(ml(t=ALL)),plan(RE)),
 'lora_all_autocast':(dict(method=L(target_modules=ALL,lora_dropout=0.1),autocast=True),job(ml(t=ALL,dropout=0.1),am),plan()),
 'lora_all_autocast_ckpt':(dict(method=L(target_modules=ALL,lora_dropout=0.1),autocast=True,ckpt='non'),job(ml(t=ALL,dropout=0.1),am),plan(NR)),
 'lora_fp32base_autocast':(dict(method=L(),precision='fp32',autocast=True),job(ml(),"bf16-mixed"),plan()),
 'dora_qv':(dict(method=L(use_dora=True)),job(ml(dora=True)),plan()),
 'dora_all_drop':(dict(method=L(use_dora=True,target_modules=ALL,lora_dropout=0.1)),job(ml(t=ALL,dropout=0.1,dora=True)),plan()),
 'dora_all_bf16':(dict(method=None,setup=nocast(L(use_dora=True,target_modules=ALL))),job(ml(t=ALL,adt="bf16",dora=True)),plan()),
 'dora_all_ckpt':(dict(method=L(use_dora=True,target_modules=ALL),ckpt='non'),job(ml(t=ALL,dora=True)),plan(NR)),
 'dora_all_autocast':(dict(method=L(use_dora=True,target_modules=ALL),autocast=True),job(ml(t=ALL,dora=True),am),plan()),
 'ia3':(dict(method=lambda: IA3Config(target_modules=["k_proj","v_proj","down_proj"],feedforward_modules=["down_proj"])),job({"kind":"ia3","targets":["k_proj","v_proj","down_proj"],"feedforward":["down_proj"]}),plan()),
 'lora_save_head':(dict(method=L(modules_to_save=["lm_head","embed_tokens"])),job(ml(modules_to_save=["lm_head","embed_tokens"])),plan()),
}
def freeze(names):
    def s(m):
        for n,p in m.named_parameters(): p.requires_grad_(any(x in n for x in names))
        return m
    return s
C['partial_norms']=(dict(method=None,setup=freeze(["norm"])),job({"kind":"partial","trainable":["model.norm","model.layers.*.input_layernorm","model.layers.*.post_attention_layernorm"]}),plan())
C['partial_head']=(dict(method=None,setup=freeze(["lm_head"])),job({"kind":"partial","trainable":["lm_head"]}),plan())
C['partial_mlp']=(dict(method=None,setup=freeze(["mlp"])),job({"kind":"partial","trainable":["model.layers.*.mlp"]}),plan())
C['partial_last']=(dict(method=None,setup=freeze(["layers.4","layers.5"])),job({"kind":"partial","trainable":["model.layers.4","model.layers.5"]}),plan())
if __name__=='__main__':
    with open(OUT,'w') as f:
        for n,(a,j,p) in C.items():
            if ONLY and n not in ONLY: continue
            a=dict(a)
            try: r=run(**a)
            except Exception as e:
                import traceback; traceback.print_exc(); continue
            f.write(json.dumps({"name":n,"job":j,"plan":p,"peaks":{k:v for k,v in r.items()}})+"\n")
