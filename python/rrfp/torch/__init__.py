"""Readiness inside PyTorch: a schedule for the stages of torch.distributed.pipelining.

>>> from rrfp.torch import ReadySchedule
>>> schedule = ReadySchedule(stages, n_microbatches=16, loss_fn=loss_fn)
>>> schedule.step(x, target=y, losses=losses)

Use it wherever torch's own schedules are used. In torchtitan, `rrfp.torch.pipelining_fn()` goes into the ModelSpec.
"""

from ._schedule import ReadySchedule
from ._titan import pipelining_fn

for public in (ReadySchedule, pipelining_fn):
    public.__module__ = __name__  # the name that a traceback prints
del public

__all__ = ["ReadySchedule", "pipelining_fn"]
