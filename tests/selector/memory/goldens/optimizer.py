# Writes optimizer.jsonl: `fakegpu optimizer.py optimizer.jsonl [CASE...]` (torch 2.11.0, transformers 4.57.6).
import sys; OUT=sys.argv[1]; ONLY=sys.argv[2:]; sys.argv=[sys.argv[0]]
from peaks import *
import transformers
RE={"kind":"full","reentrant":True}; NR={"kind":"full","reentrant":False}
def job(o,precision="bf16"): return {"model":"llama_small.json","method":"full","sequence_length":256,"precision":precision,"optimizer":o,"attention":"sdpa","loss":"plain","framework":{"name":"ddp","trainer":"transformers","trainer_version":transformers.__version__},"software":{"torch":torch.__version__.split('+')[0]}}
P={"gpu":"a100_sxm_80gb","gpus_per_node":1,"micro_batch":1,"activation_checkpointing":NR}
def hf_adafactor(p): 
    from transformers.optimization import Adafactor
    return Adafactor(p,lr=1e-4,scale_parameter=False,relative_step=False)
class Mixed:                     # Muon for the matrices of blocks, AdamW for the rest
    def __init__(self,p):
        big=[q for q in p if q.ndim==2 and q.shape[0]!=16000]; ids={id(q) for q in big}
        self.o=[torch.optim.Muon(big,lr=1e-4),torch.optim.AdamW([q for q in p if id(q) not in ids],lr=1e-4,foreach=False)]
    def step(self): [o.step() for o in self.o]
    def zero_grad(self): [o.zero_grad() for o in self.o]
C={'adamw_foreach':('adamw_foreach',{"name":"adamw","implementation":"foreach"}),
 'adamw_default':('adamw',{"name":"adamw"}),
 'adamw_single':('adamw_single',{"name":"adamw","implementation":"single"}),
 'adamw_fused':('adamw_fused',{"name":"adamw","implementation":"fused"}),
 'adam_foreach':(lambda p: torch.optim.Adam(p,lr=1e-4),{"name":"adam"}),
 'sgd_plain':(lambda p: torch.optim.SGD(p,lr=1e-4),{"name":"sgd"}),
 'adafactor_hf':(hf_adafactor,{"name":"adafactor"}),
}
if hasattr(torch.optim,'Muon'): C['muon_torch']=(Mixed,{"name":"muon"})
for d in ('bf16','fp32'):
  with open(OUT,'a' if d=='fp32' else 'w') as f:
    for n,(o,jo) in C.items():
        if ONLY and n not in ONLY: continue
        try: r=run(opt=o,b=1,s=256,ckpt='non',precision=d)
        except Exception as e:
            import traceback; traceback.print_exc(limit=-1); continue
        f.write(json.dumps({"name":n+'_'+d,"job":job(jo,d),"plan":P,"peaks":r})+"\n"); f.flush()
