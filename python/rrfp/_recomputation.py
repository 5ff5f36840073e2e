"""What the runtime must know of parts that compute values anew in backward, as torch.utils.checkpoint does.

Replaces functions of torch with ones that also take the lock of the generators, or check the buffers for changes.
"""

import contextlib
import functools

import torch
import torch.utils.checkpoint

from ._buffers import running
from ._draws import turn

_fork_rng = torch.random.fork_rng
_enter_hooks = torch.autograd.graph.saved_tensors_hooks.__enter__
_exit_hooks = torch.autograd.graph.saved_tensors_hooks.__exit__


@functools.wraps(_fork_rng)
@contextlib.contextmanager
def _fork_rng_in_turn(*args, **kwargs):
    # Torch's generators belong to the process: no forward of another part may draw meanwhile.
    with turn, _fork_rng(*args, **kwargs):
        yield


@functools.wraps(_enter_hooks)
def _enter_watched_hooks(self):
    buffers = getattr(running, "buffers", None)
    if buffers is not None and type(self).__module__ == torch.utils.checkpoint.__name__:
        self.rrfp_marks = buffers.marks()
    return _enter_hooks(self)


@functools.wraps(_exit_hooks)
def _exit_watched_hooks(self, kind, *error):
    _exit_hooks(self, kind, *error)
    name = running.buffers.changed(self.rrfp_marks) if kind is None and hasattr(self, "rrfp_marks") else None
    if name is not None:
        raise RuntimeError(
            f"forward changes the buffer '{name}' under torch.utils.checkpoint, which would change it again in "
            "backward: expected it outside of the checkpoint"
        )


torch.random.fork_rng = _fork_rng_in_turn
torch.autograd.graph.saved_tensors_hooks.__enter__ = _enter_watched_hooks
torch.autograd.graph.saved_tensors_hooks.__exit__ = _exit_watched_hooks
