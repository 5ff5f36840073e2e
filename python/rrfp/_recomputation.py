"""What the runtime must know of parts that compute values anew in backward, as torch.utils.checkpoint does.

Replaces two functions of torch by ones that do the same and, first, take a turn or a note.
"""

import contextlib
import functools
import threading

import torch

from . import _rrfp

_thread = threading.local()
_fork_rng = torch.random.fork_rng
_enter_hooks = torch.autograd.graph.saved_tensors_hooks.__enter__


@functools.wraps(_fork_rng)
@contextlib.contextmanager
def _fork_rng_in_turn(*args, **kwargs):
    # Torch's generators belong to the process: no forward of another part may draw meanwhile.
    with _rrfp.GeneratorTurn(), _fork_rng(*args, **kwargs):
        yield


@functools.wraps(_enter_hooks)
def _enter_watched_hooks(self):
    _thread.has_hooks = True
    return _enter_hooks(self)


torch.random.fork_rng = _fork_rng_in_turn
torch.autograd.graph.saved_tensors_hooks.__enter__ = _enter_watched_hooks


def with_hooks(function, *args):
    """The result of a forward, and whether it used hooks on saved tensors."""
    _thread.has_hooks = False
    result = function(*args)
    return result, _thread.has_hooks
