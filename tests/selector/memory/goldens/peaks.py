# Allocated peaks of training code phase by phase: on a GPU, or on the pretended one of tests/truth/fake_gpu (same numbers, no card).
import contextlib, gc, json, os, sys
import torch, torch.nn.functional as F
HERE = os.path.dirname(os.path.abspath(__file__)) + '/'
def build(cfgfile, dtype, attn='sdpa'):
    from transformers import AutoConfig, AutoModelForCausalLM
    cfg=AutoConfig.from_pretrained(cfgfile); cfg.use_cache=False
    old=torch.get_default_dtype(); torch.set_default_dtype(dtype)
    with torch.device('cuda'):
        m=AutoModelForCausalLM.from_config(cfg, torch_dtype=dtype, attn_implementation=attn)
    torch.set_default_dtype(old)
    return m
def opt_of(opt,params):
    if callable(opt): return opt(params)
    kw={'adamw_foreach':dict(foreach=True),'adamw_fused':dict(fused=True),'adamw_single':dict(foreach=False),'adamw':{}}[opt]
    return torch.optim.AdamW(params,lr=1e-4,**kw)
def run(method=None, precision="bf16", b=4, s=1024, ckpt=None, autocast=False, opt='adamw_foreach', clip=True, setup=None, dtype=None, cfg='llama_small.json', attn='sdpa', inputs_grad=None, steps=3, accum=1, wrap=None, in_backward=None, keep=False, nosync=False, info=None):
    dtype=dtype or (torch.float32 if precision in('fp32','bf16-mixed') else torch.bfloat16)
    res={}
    model=build(HERE+cfg,dtype,attn)
    if setup: model=setup(model)
    if method:
        from peft import get_peft_model
        model=get_peft_model(model,method())
    if ckpt is not None:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant":ckpt=='reentrant'})
        if inputs_grad is not False and any(not p.requires_grad for p in model.parameters()): model.enable_input_require_grads()
    model.train()
    if wrap: model=wrap(model)
    params=[p for p in model.parameters() if p.requires_grad]
    o=in_backward(model) if in_backward else opt_of(opt,params)
    gc.collect(); torch.cuda.empty_cache()
    M=torch.cuda.max_memory_allocated; R=torch.cuda.reset_peak_memory_stats
    res['steady']=torch.cuda.memory_allocated(); R()
    base=torch.cuda.memory_allocated()
    for step in range(1,steps+1):
        w=dict.fromkeys(('forward','backward','clip','optimizer_step'),0)
        for micro in range(accum):
            ids=torch.randint(0,100,(b,s),device='cuda'); labels=ids.clone()
            R()
            inner=model.no_sync() if nosync and micro+1<accum else contextlib.nullcontext()
            with inner, (torch.autocast('cuda',dtype=torch.bfloat16) if autocast else contextlib.nullcontext()):
                out=model(input_ids=ids,labels=labels)
                loss=out.loss
            w['forward']=max(w['forward'],M())
            if not keep: del out
            sync=model.no_sync() if nosync and micro+1<accum else contextlib.nullcontext()
            R()
            with sync: loss.backward()
            w['backward']=max(w['backward'],M())
        R()
        if clip: model.clip_grad_norm_(1.0) if hasattr(model,'clip_grad_norm_') else torch.nn.utils.clip_grad_norm_(params,1.0)
        w['clip']=M(); R()
        if o is not None: o.step()
        w['optimizer_step']=M()
        if o is not None: o.zero_grad()
        del loss
        R()
    res.update(w); res['reserved']=torch.cuda.max_memory_reserved()
    return res
