"""Random numbers that do not depend on the order in which microbatches run."""

import threading
import weakref

import torch

from . import _runtime
from ._errors import Error

#: Torch's generators belong to the process: whoever sets one for a while holds the turn meanwhile.
turn = threading.RLock()


class _Thread(threading.local):
    depth = 0  # in how many forwards, losses and keyed_generators it is


_thread = _Thread()


def check_outside():
    """Refuses a call of a pipeline where another one may wait for this thread."""
    if _thread.depth > 0:
        raise Error(
            "the pipeline was called inside a forward, a loss or a keyed_generator: expected a call from outside",
            "bad_input",
            2,
        )


class Generator:
    """Seeds torch's generators of the CPU and of `device` from __enter__ to __exit__; then they are as before."""

    def __init__(self, seed, device=None):
        self._seed = seed
        self._all = [torch.default_generator]
        if device is not None and torch.device(device).type == "cuda":
            torch.cuda.init()
            self._all.append(torch.cuda.default_generators[torch.device(device).index or 0])

    def __enter__(self):
        turn.acquire()
        _thread.depth += 1
        self._before = [g.get_state() for g in self._all]
        for g in self._all:
            g.manual_seed(self._seed)
        return self

    def __exit__(self, *error):
        for g, state in zip(self._all, self._before):
            g.set_state(state)
        _thread.depth -= 1
        turn.release()


class Draws:
    """Calls the forward and the loss of one part, each with numbers of its own.

    A call whose first one of its mode drew none runs without a generator, unless another part in this process draws:
    then it may still begin to draw, which must not change the numbers of the other.
    """

    _drawing = ()  # weak references to those that have drawn; replaced under the turn, read without it

    def __init__(self, device=None):
        self._device = device
        self._used = {}  # by mode

    def run(self, key, mode, call, args, kwargs):
        """`key`: (seed, step, microbatch, part)."""
        used = self._used.get(mode)
        if used is False and not (Draws._drawing and any(ref() not in (None, self) for ref in Draws._drawing)):
            _thread.depth += 1
            try:
                return call(*args, **kwargs)
            finally:
                _thread.depth -= 1
        with Generator(_runtime.key_of_draws(*key), self._device) as generator:
            if used is None:
                before = [g.get_state() for g in generator._all]
            result = call(*args, **kwargs)
            if used is None:
                after = [g.get_state() for g in generator._all]
                self._used[mode] = not all(map(torch.equal, before, after))
                if self._used[mode] and not any(ref() is self for ref in Draws._drawing):
                    Draws._drawing = (*(ref for ref in Draws._drawing if ref() is not None), weakref.ref(self))
        return result
