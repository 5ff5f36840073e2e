"""Random numbers that do not depend on the order in which microbatches run."""

import contextlib
import hashlib
import threading

import torch

# libtorch's default generator belongs to the process; stages that draw from it take turns.
_turn = threading.RLock()


@contextlib.contextmanager
def keyed_generator(seed, step, microbatch, stage):
    """Within it torch's default generator is seeded by these four numbers; then it is as before.

    The pipeline runs each forward of a stage that draws random numbers in it; `step` counts from 1. A plain
    loop that does the same gets the same numbers.
    """
    key = f"{seed}/{step}/{microbatch}/{stage}".encode()
    number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
    with _turn:
        before = torch.default_generator.get_state()
        torch.default_generator.manual_seed(number)
        try:
            yield
        finally:
            torch.default_generator.set_state(before)


class StageGenerator:
    """Decides for one stage whether its forward draws random numbers: its first one tells."""

    def __init__(self, seed, stage):
        self.key = (seed, stage)
        self.draws = {}  # by training or not

    @contextlib.contextmanager
    def at(self, step, microbatch, training):
        if self.draws.get(training) is False:
            yield
            return
        seed, stage = self.key
        with keyed_generator(seed, step, microbatch, stage):
            seeded = torch.default_generator.get_state()
            yield
            if training not in self.draws:
                self.draws[training] = not torch.equal(seeded, torch.default_generator.get_state())
