"""A program of test_cuda.py: trains on CUDA devices in several ways, which must give the same bits."""

import sys

import rrfp
import torch
from models import adam, mlp, rows
from torch import nn


class Encoder(nn.Module):
    """Returns a tuple with integers, a number and None, and changes a buffer."""

    forwards_in_order = True

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, ids, scale):
        x = self.embedding(ids).mean(1)
        if self.training:
            self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return x - self.mean.clone(), ids, scale, None


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 16)

    def forward(self, x, ids, scale, nothing, shift=None):
        assert nothing is None and x.device == ids.device == shift.device
        return self.head(x * scale) + shift + ids.sum(1, keepdim=True)


def two_parts():
    torch.manual_seed(3)
    return [Encoder(), Decoder()]


def encoded(step):
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 16, (24, 5), generator=generator)
    return (ids, 0.5), {"shift": torch.randn(24, 16, generator=generator)}, torch.randn(24, 16, generator=generator)


def plain_rows(step):
    x, y = rows(step)
    return (x,), {}, y


WAYS = (
    {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b"},
    {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5},
    {"dispatch.policy": "zb_h1"},
)
for make, data in ((lambda: mlp(2), plain_rows), (lambda: mlp(4), plain_rows), (two_parts, encoded)):
    results = []
    for way in WAYS:
        parts, losses = make(), []
        settings = {"device.kind": "cuda", **way}
        with rrfp.Pipeline(
            parts, nn.functional.mse_loss, n_microbatches=6, optimizer=adam, settings=settings
        ) as pipe:
            for step in range(3):
                args, kwargs, y = data(step)
                output = pipe.step(*args, target=y, losses=losses, **kwargs)
                assert output.device.type == "cpu" and output.shape == y.shape
            args, kwargs, y = data(7)
            pipe.eval(*args, target=y, losses=losses, **kwargs)
        state = [value for part in parts for value in part.state_dict().values()]
        assert all(value.is_cuda for value in state)
        results.append(([loss.item() for loss in losses], [value.cpu() for value in state]))
    for losses, state in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(a, b) for a, b in zip(state, results[0][1]))
print("equal", file=sys.stderr)
