"""Models of several kinds, cut into one to four stages, equal a plain loop to the last bit."""

import pytest
import rrfp
from kinds import KINDS
from models import adam, equal, twin

JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
WAYS = {
    **{policy: {**JITTER, "dispatch.policy": policy} for policy in ("bf", "bfw", "bfw_plus", "zb_h1")},
    "in order": {**JITTER, "dispatch.policy": "one_f_one_b", "dispatch.mode": "in-order"},
}


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("name", KINDS)
def test_training_equals_a_plain_loop(name, stages):
    kind = KINDS[name]
    begin = kind.make(stages)
    plain = twin(begin)
    expected = [loss for step in kind.train_plainly(plain) for loss in step]
    for way, settings in WAYS.items():
        parts, losses = twin(begin), []
        with rrfp.Pipeline(
            parts, kind.loss_fn, n_microbatches=4, optimizer=adam, settings=settings, seed=3
        ) as pipe:
            for x, y in kind.batches():
                pipe.step(*x, target=y, losses=losses)
        assert [loss.item() for loss in losses] == expected, way
        assert equal(parts, plain), way
