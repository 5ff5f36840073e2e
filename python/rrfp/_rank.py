"""What the runtime calls of a rank, on the thread of step() or on one of its own."""

import os

import torch

from ._closing import end_child
from ._messages import decode_gradients, encode_gradients
from ._modules import one_line

_forward, _backward, _weight, _whole = range(4)  # kinds of tasks, as the runtime numbers them


class Kept:
    """The first exception of the program's functions, whose text the runtime tells to all processes."""

    def __init__(self):
        self.failure = None
        self.raised = None  # the text of the last error that the program has had
        self._process = os.getpid()  # that opened the pipeline

    def __enter__(self):
        pass

    def __exit__(self, kind, e, traceback):
        if e is None:
            return self.check_process()
        text, is_input = self.keep(e)
        if not is_input:
            raise RuntimeError(text) from None

    def check_process(self, e=None):
        """Ends a child of os.fork() that returns into the pipeline, or leaves a function by the exception `e`."""
        if os.getpid() != self._process:
            end_child(e)

    def keep(self, e):
        """Returns its text, and whether it is an Error of kind "bad_input"."""
        self.check_process(e)
        is_input = getattr(e, "kind", None) == "bad_input"
        if self.failure is None:
            self.failure = e.__cause__ if is_input else e
        return str(e) if is_input else one_line(e), is_input

    def raise_if_ends(self):
        """Raises what ends a program (KeyboardInterrupt, SystemExit) and has only kept the runtime from copying a state."""
        failure = self.failure
        if failure is not None and not isinstance(failure, Exception):
            self.failure = None
            raise failure

    def raise_as_cause(self, error):
        """Raises the error of the runtime with the exception as its cause; one that ends a program (KeyboardInterrupt,
        SystemExit) is raised itself."""
        failure, self.failure, self.raised = self.failure, None, str(error)
        if failure is not None and not isinstance(failure, Exception):
            raise failure from error
        raise error from failure or error.__cause__


class Rank:
    """A stage whose parameters are the program's own: it has no updates and no state."""

    tied_side = 0  # 1: it has the owner of a tied parameter, 2: the copy

    def __init__(self, parts, kept, forwards_in_order):
        self.parts = parts
        self.kept = kept
        self.forwards_in_order = forwards_in_order

    def prepare_thread(self):
        """On a thread of the runtime."""

    def begin(self, step, trains, counts, pieces):
        """Returns the function that runs the tasks of the step: run(), or one around it.

        counts: the microbatches of the step, by replica. pieces: those that this rank runs (_shares.Piece); None: its own.
        """
        self.trains = trains
        for part in self.parts:
            part.begin_step(step, trains)
        return self.run

    def run(self, kind, mb, chunk, first, count, message):
        """One task, which folds the gradients of `count` microbatches from `first`."""
        part = self.parts[chunk]
        if torch.is_grad_enabled() != self.trains:
            torch.set_grad_enabled(self.trains)  # who runs the step on this thread sets it back
        if kind == _forward:
            return part.forward(mb, message)
        if not self.trains:
            # An empty gradient tells the neighbour that it may release its input as well.
            return None if kind == _weight or part.is_first else encode_gradients(())
        folds = range(first, first + count)
        if kind == _weight:
            return part.weight(mb, folds)
        grads = part.seeds(mb) if part.is_last else decode_gradients(message, part.device, part.mesh_of, part.after)
        found = part.backward(mb, grads, kind == _whole, folds)
        return None if part.is_first else encode_gradients(found, part.before)

    def _nothing(self, *_):
        return None

    def _none(self, *_):
        return []

    take_opened_sum = sum_gradients = apply = _nothing
    losses = squared_norms = values = names = snapshot = _none
