"""Pipeline-parallel training in which each stage runs the task that is ready.

>>> pipe = rrfp.Pipeline(stages, loss_fn, n_microbatches=16, policy="bfw",
...                      optimizer=lambda params: torch.optim.AdamW(params, 1e-3))
>>> losses = []
>>> output = pipe.step(x, target=y, losses=losses)

The words are those of torch.distributed.pipelining. Several processes are started by torchrun; each
hosts one stage, or some of them.
"""

import torch  # loads the libraries that _rrfp needs

from . import _rrfp

if torch.__version__.split("+")[0] != _rrfp.torch_version:
    raise ImportError(
        f"rrfp {_rrfp.version} was built with torch {_rrfp.torch_version}, but this is torch "
        f"{torch.__version__}: install torch=={_rrfp.torch_version}, or build rrfp again"
    )

from ._parallel import copy_to_ranks, reduce_from_ranks
from ._pipeline import Error, Pipeline, StepResult
from ._transformers import from_pretrained, from_transformers, measure_layers

__version__ = _rrfp.version
policies = _rrfp.policies
for public in (
    Error,
    Pipeline,
    StepResult,
    copy_to_ranks,
    from_pretrained,
    from_transformers,
    measure_layers,
    reduce_from_ranks,
):
    public.__module__ = __name__  # the name that a traceback prints
del public


def keyed_generator(seed, step, microbatch, stage):
    """A context in which torch's default generator is seeded by these four numbers; then it is as before.

    The pipeline runs each forward of a stage that draws random numbers in it; `step` counts from 1. A plain
    loop that does the same gets the same numbers.
    """
    return _rrfp.GeneratorScope(seed, step, microbatch, stage)


__all__ = [
    "Error",
    "Pipeline",
    "StepResult",
    "copy_to_ranks",
    "from_pretrained",
    "from_transformers",
    "keyed_generator",
    "measure_layers",
    "policies",
    "reduce_from_ranks",
]
