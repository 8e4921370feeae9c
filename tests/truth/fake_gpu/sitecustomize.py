"""Questions about values that a whole tensor answers: a fake GPU reads back zeros, so `mask.all()` and `isfinite(x).all()` would say
no. Here they say yes (masks are full of ones, everything is finite), as `any()` says no by itself."""
import importlib.abc, importlib.machinery, sys


def patch_torch(torch):
    for owner in (torch.Tensor, torch):
        original = owner.all

        def all(tensor, *args, _original=original, **kwargs):
            answer = _original(tensor, *args, **kwargs)
            if args or kwargs or type(answer) is not torch.Tensor or not answer.is_cuda or torch.compiler.is_compiling():
                return answer
            return torch.tensor(True)
        owner.all = all


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.loader:
            run = spec.loader.exec_module

            def exec_module(module):
                run(module)
                patch_torch(module)
            spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
