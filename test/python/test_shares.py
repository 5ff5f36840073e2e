"""Replicas that run microbatches of others because these are slow: the bits are those of equal shares."""

import copy
import time

import pytest
import rrfp
import torch
from models import adam, mlp, rows

STEPS, MICROBATCHES = 10, 4


class Slow(torch.nn.Module):
    """A part that is slow in every replica but the first, which has the module itself and no copy."""

    def __init__(self, module):
        super().__init__()
        self.module = module
        self.unused = torch.nn.Linear(2, 2)
        self.sleep = 0.0

    def __deepcopy__(self, memo):
        made = Slow(copy.deepcopy(self.module, memo))
        made.unused = copy.deepcopy(self.unused, memo)
        made.sleep = 0.03
        return made

    def forward(self, x):
        time.sleep(self.sleep)
        return self.module(x)


def train(shares, replicas=2, dtype=torch.float32, update=lambda step: True, **settings):
    parts = [Slow(part).to(dtype) for part in mlp(2)]
    losses, run_here = [], []
    with rrfp.Pipeline(
        parts,
        torch.nn.functional.mse_loss,
        n_microbatches=MICROBATCHES,
        optimizer=adam,
        settings={"pipeline.replicas": replicas, "pipeline.shares": shares, **settings},
    ) as pipe:
        for step in range(STEPS):
            x, y = rows(step, 4 * MICROBATCHES * replicas)
            pipe.step(x.to(dtype), target=y.to(dtype), update=update(step))
            losses.append(pipe.last.losses)
            run_here.append([len(rank.parts[0].microbatches) for rank in pipe._model.ranks])
            if step % 3 == 2:
                pipe.eval(x.to(dtype), target=y.to(dtype))
                losses.append(pipe.last.losses)
        state = pipe.state_dict()
    return losses, state, run_here


def check_equal(one, other):
    assert one[0] == other[0]
    assert all(torch.equal(value, other[1][name]) for name, value in one[1].items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("replicas, chunks", [(2, 1), (2, 2), (3, 1)])
def test_a_replica_runs_microbatches_of_a_slow_one_with_equal_bits(dtype, replicas, chunks):
    settings = {"pipeline.chunks": chunks} if chunks > 1 else {}
    equal, measured = (train(shares, replicas, dtype, **settings) for shares in ("equal", "measured"))
    assert any(here != [MICROBATCHES] * replicas for here in measured[2]), measured[2]
    check_equal(equal, measured)


def test_gradients_that_wait_for_an_update_stay_in_their_replica():
    update = lambda step: step % 2 == 1 or step < 5
    equal, measured = (train(shares, update=update) for shares in ("equal", "measured"))
    assert any(here != [MICROBATCHES] * 2 for here in measured[2]), measured[2]
    check_equal(equal, measured)
