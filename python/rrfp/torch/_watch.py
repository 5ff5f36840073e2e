"""Finds collectives of tasks on ranks that do not run the same tasks."""

import contextlib
import functools

import torch
from torch._subclasses import FakeTensor
from torch.distributed import ProcessGroup, get_process_group_ranks
from torch.distributed.distributed_c10d import _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

from .._modules import is_compiled
from .._rank import Rank

_of_collectives = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "symm_mem")


class WatchedRank(Rank):
    """Looks at the collectives of all tasks of its first step and of its first evaluation.

    Under readiness, ranks of different domains run their tasks in different orders, so a collective between them would
    join other microbatches, or never end. Of a compiled part, which would run without compilation, only the loss is
    watched; collectives on other threads are not seen.
    """

    def __init__(self, parts, kept, forwards_in_order, ranks):
        super().__init__(parts, kept, forwards_in_order)
        self._ranks = ranks
        self._seen = set()

    def begin(self, step, trains, counts, pieces):
        self.parts[0].batch.adopt(counts[0])
        run = super().begin(step, trains, counts, pieces)
        is_new = trains not in self._seen
        self._seen.add(trains)
        return functools.partial(_run_watched, run, _Watch(self._ranks), self.parts) if is_new else run


def _run_watched(run, watch, parts, kind, mb, chunk, *more):
    part = parts[chunk]
    if not is_compiled(part.module):
        with watch:
            return run(kind, mb, chunk, *more)
    part.around_loss = watch
    try:
        return run(kind, mb, chunk, *more)
    finally:
        part.around_loss = contextlib.nullcontext()


class _Watch(TorchDispatchMode):
    def __init__(self, ranks):
        super().__init__()
        self._ranks = set(ranks)

    @classmethod
    def ignore_compile_internals(cls):
        """Otherwise torch.compile would leave alone for good what runs under the watch, such as a compiled loss."""
        return True

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace in _of_collectives:
            for group in _groups_of(func, args, kwargs or {}):
                self._check(func, sorted(get_process_group_ranks(group)))
        if any(t.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ and not issubclass(t, FakeTensor) for t in types):
            return NotImplemented  # and what they are made of comes here
        return func(*args, **(kwargs or {}))

    def _check(self, func, ranks):
        if not self._ranks.issuperset(ranks):
            name = func.__name__.split(".")[0].strip("_")
            raise ValueError(
                f"{name} over the ranks {ranks} inside a task, but only {sorted(self._ranks)} run their tasks in the same "
                "order: expected `domain` to have all of them, or the collective outside of the stage (of FSDP: "
                "fully_shard() of the whole stage, before the schedule is made)"
            )


def _groups_of(func, args, kwargs):
    for argument, value in zip(func._schema.arguments, args):
        if argument.name == "group_name":
            yield _resolve_process_group(value)
        elif isinstance(value, torch.ScriptObject) and "ProcessGroup" in str(argument.type):
            yield ProcessGroup.unbox(value)
    if "group_name" in kwargs:
        yield _resolve_process_group(kwargs["group_name"])
