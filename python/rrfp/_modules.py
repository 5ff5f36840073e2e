"""What the runtime must know of the modules of torch that it calls."""

import os
import threading

import torch


class _Thread(threading.local):
    hooks = 0  # that it has entered or put since take_hooks()


_thread = _Thread()
register_hook = torch.Tensor.register_hook
_retain_grad = torch.Tensor.retain_grad
_enter_hooks = torch.autograd.graph.saved_tensors_hooks.__enter__


def _count_hooks(self):
    _thread.hooks += 1
    return _enter_hooks(self)


def _count_hook_of_tensor(self, hook):
    if self.grad_fn is not None:
        _thread.hooks += 1
    return register_hook(self, hook)


def _count_retained_grad(self):
    if self.grad_fn is not None:
        _thread.hooks += 1
    getattr(_thread, "retained", []).append(self)
    return _retain_grad(self)


torch.autograd.graph.saved_tensors_hooks.__enter__ = _count_hooks
torch.Tensor.register_hook = _count_hook_of_tensor
torch.Tensor.retain_grad = _count_retained_grad


def take_hooks():
    """Of this thread since the last call: how often it has entered hooks on saved tensors, as torch.utils.checkpoint
    does, or has put hooks on tensors of a graph, as retain_grad() does, and the tensors whose gradient it has retained.
    A backward in two halves would call the hooks twice."""
    taken = _thread.hooks, getattr(_thread, "retained", [])
    _thread.hooks, _thread.retained = 0, []
    return taken


def has_multi_grad_hook(parameter):
    """Whether it has one of torch.autograd.graph.register_multi_grad_hook()."""
    own = torch.autograd.graph.__file__
    hooks = getattr(parameter, "_backward_hooks", None) or {}
    return any(getattr(getattr(hook, "__code__", None), "co_filename", None) == own for hook in hooks.values())


def is_compiled(module):
    return any(
        m._compiled_call_impl is not None
        or any(hasattr(value, "_torchdynamo_orig_callable") for value in (type(m).forward, *vars(m).values()))
        for m in module.modules()
    )


def adapts_parameters(module):
    """Whether it has adapters of peft for parameters alone, such as those of experts. They compute under parametrize.cached(),
    whose cache belongs to the process."""
    return any(type(m).__name__ == "ParamWrapper" for m in module.modules())


def keep_device_guard():
    """Compilation without a GPU, in a torch built for CUDA, stores a guard in a global variable that belongs to its
    thread, so it is left dangling when a thread of a pipeline ends. This stores that of the calling thread for good."""
    name = "_ensureCUDADeviceGuardSet"
    getattr(torch._C, name, lambda: None)()
    setattr(torch._C, name, lambda: None)


def make_deterministic():
    """Kernels of CUDA that give equal bits for equal runs."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True


def forwards_in_order(module):
    """Whether it says so, has a batch norm, a spectral norm, or rotary embeddings that follow the lengths of the texts."""
    changes_buffers = any(name.endswith("running_mean") for name, _ in module.named_buffers()) or any(
        has_spectral_norm(m) or is_dynamic_rotary(m) for m in module.modules()
    )
    return getattr(module, "forwards_in_order", changes_buffers)


def has_spectral_norm(module):
    """Of torch.nn.utils.parametrizations, or the older one of torch.nn.utils."""
    kinds = (type(one).__name__ for one in (module, *module._forward_pre_hooks.values()))
    return any(kind in ("_SpectralNorm", "SpectralNorm") for kind in kinds)


def is_dynamic_rotary(module):
    """Whether it is one of transformers that changes its frequencies with the length."""
    kinds = getattr(module, "rope_type", None)
    kinds = kinds.values() if isinstance(kinds, dict) else [kinds]
    return any(isinstance(kind, str) and ("dynamic" in kind or kind == "longrope") for kind in kinds)


def one_line(e):
    try:
        first = str(e).strip().split("\n")[0]
    except Exception:  # of its __str__(); the name of the class remains
        first = ""
    return f"{type(e).__name__}: {first}" if first else type(e).__name__
