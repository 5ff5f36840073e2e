"""Pipeline-parallel training in which each stage runs the task that is ready.

>>> pipe = rrfp.Pipeline(stages, loss_fn, n_microbatches=16, policy="bfw",
...                      optimizer=lambda params: torch.optim.AdamW(params, 1e-3))
>>> losses = []
>>> output = pipe.step(x, target=y, losses=losses)

The terms are those of torch.distributed.pipelining. Use torchrun to start several processes; each hosts one or more
stages.
"""

import importlib

from . import _runtime
from ._analysis import Analysis, analyze
from ._errors import Error
from ._packing import CostModel, Imbalance, PackedStep, Packing, admission_order, pack
from ._simulation import Simulation, simulate

__version__ = _runtime.version
policies = _runtime.policies
for public in (Analysis, CostModel, Error, Imbalance, PackedStep, Packing, Simulation, admission_order, analyze, pack, simulate):
    public.__module__ = __name__  # the name that a traceback prints
del public

_with_torch = {
    "Pipeline": "_pipeline",
    "StepResult": "_pipeline",
    "copy_to_ranks": "_parallel",
    "from_pretrained": "_transformers",
    "from_transformers": "_transformers",
    "measure_layers": "_transformers",
    "pack_microbatch": "_packed_batch",
    "reduce_from_ranks": "_parallel",
}


def __getattr__(name):
    if name not in _with_torch:
        raise AttributeError(f"module 'rrfp' has no attribute '{name}'")
    try:
        value = getattr(importlib.import_module(f".{_with_torch[name]}", __name__), name)
    except ModuleNotFoundError as e:
        if e.name != "torch":
            raise
        raise ModuleNotFoundError(f"rrfp.{name} needs torch: pip install 'rrfp[torch]'", name="torch") from None
    value.__module__ = __name__
    globals()[name] = value
    return value


def keyed_generator(seed, step, microbatch, stage, device=None):
    """Returns a context in which torch's default generator, and a CUDA device's, are seeded from these four numbers.

    At the end of the context their earlier states are restored. The pipeline runs each forward that draws random
    numbers in such a context, with `step` counted from 1. A plain loop that does the same gets the same numbers.
    """
    from ._draws import Generator

    return Generator(_runtime.key_of_draws(seed, step, microbatch, stage), device)


__all__ = [
    "Analysis",
    "CostModel",
    "Error",
    "Imbalance",
    "PackedStep",
    "Packing",
    "Pipeline",
    "Simulation",
    "StepResult",
    "admission_order",
    "analyze",
    "copy_to_ranks",
    "from_pretrained",
    "from_transformers",
    "keyed_generator",
    "measure_layers",
    "pack",
    "pack_microbatch",
    "policies",
    "reduce_from_ranks",
    "simulate",
]
