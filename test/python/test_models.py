"""Models of several kinds, cut into one to four stages, equal a plain loop to the last bit."""

import pytest
import rrfp
import torch
from models import adam, equal, train_plainly, twin
from torch import nn
from torch.nn import functional


class CharLstm(nn.Module):
    """A layer of a character model; the first one embeds, the last one has the head."""

    def __init__(self, index, count):
        super().__init__()
        self.embedding = nn.Embedding(30, 16) if index == 0 else nn.Identity()
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 30) if index == count - 1 else nn.Identity()

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


class UNetLevel(nn.Module):
    """A level of the way down, or of the way up, which takes the output of its partner down there."""

    def __init__(self, index, count):
        super().__init__()
        self.is_down, self.is_last = index < count // 2, index == count - 1
        self.convolution = nn.Conv2d(4, 4, 3, padding=1)
        if index == 0:
            self.enter = nn.Conv2d(1, 4, 1)
        if self.is_last:
            self.leave = nn.Conv2d(4, 1, 1)

    def forward(self, x, skips=()):
        if hasattr(self, "enter"):
            x = self.enter(x)
        if self.is_down:
            skips = (*skips, x)
            x = functional.avg_pool2d(functional.relu(self.convolution(x)), 2)
        elif skips:
            x = functional.interpolate(self.convolution(x), scale_factor=2) + skips[-1]
            skips = skips[:-1]
        return self.leave(x) if self.is_last else (x, skips)


class EncoderDecoder(nn.Module):
    """The first half encodes the source; the second half decodes the other input, which travels with it."""

    def __init__(self, index, count):
        super().__init__()
        self.is_encoder = index < count // 2
        self.is_last = index == count - 1
        if index == 0:
            self.embedding = nn.Embedding(30, 16)
        self.layer = (
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
            if self.is_encoder
            else nn.TransformerDecoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        )
        if self.is_last:
            self.head = nn.Linear(16, 30)

    def forward(self, source, target):
        if hasattr(self, "embedding"):
            source, target = self.embedding(source), self.embedding(target)
        if self.is_encoder:
            source = self.layer(source)
        else:
            target = self.layer(target, source)
        return self.head(target) if self.is_last else (source, target)


class Lora(nn.Module):
    """A frozen linear layer with a trained correction of low rank."""

    def __init__(self, index, count):
        super().__init__()
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.a = nn.Parameter(torch.randn(2, 16) * 0.1)
        self.b = nn.Parameter(torch.zeros(16, 2))

    def forward(self, x):
        return torch.tanh(self.frozen(x) + functional.linear(x, self.b @ self.a))


class Dropout(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.GELU())

    def forward(self, x):
        return self.layers(x)


class Normed(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x):
        return functional.relu(self.norm(self.convolution(x)))


def ids(generator, length=9):
    return torch.randint(0, 30, (12, length), generator=generator)


def token_loss(logits, target):
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def of_tokens(generator):
    x = ids(generator)
    return (x,), x.roll(-1, 1)


def of_pictures(generator):
    x = torch.rand(12, 1, 8, 8, generator=generator)
    return (x,), x * 2


def of_two_inputs(generator):
    return (ids(generator), ids(generator, 5)), ids(generator, 5)


def of_rows(generator):
    return (torch.randn(12, 16, generator=generator),), torch.randn(12, 16, generator=generator)


READY = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
MODELS = {
    "character LSTM": (CharLstm, of_tokens, token_loss, READY),
    "U-Net with skips": (UNetLevel, of_pictures, functional.mse_loss, READY),
    "encoder and decoder with two inputs": (EncoderDecoder, of_two_inputs, token_loss, READY),
    "LoRA": (Lora, of_rows, functional.mse_loss, READY),
    "dropout": (Dropout, of_rows, functional.mse_loss, READY),
    "batch norm": (Normed, of_pictures, functional.mse_loss, READY),
}


class Splitting:
    """A tuple of tensors that the plain loop splits as it splits a tensor."""

    def __init__(self, values):
        self.values = values

    def tensor_split(self, n):
        return list(zip(*(value.tensor_split(n) for value in self.values)))


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_training_equals_a_plain_loop(name, stages):
    part, data, loss_fn, settings = MODELS[name]
    torch.manual_seed(stages)
    parts = [part(i, stages) for i in range(stages)]
    plain = twin(parts)
    batches = [data(torch.Generator().manual_seed(step)) for step in range(3)]
    around = lambda step, mb, stage: rrfp.keyed_generator(3, step, mb, stage)
    expected = train_plainly(
        plain, loss_fn, [(Splitting(x), y) for x, y in batches], 4, around=around
    )
    losses = []
    with rrfp.Pipeline(
        parts, loss_fn, n_microbatches=4, optimizer=adam, settings=settings, seed=3
    ) as pipe:
        for x, y in batches:
            pipe.step(*x, target=y, losses=losses)
    assert [loss.item() for loss in losses] == [loss for step in expected for loss in step]
    assert equal(parts, plain)
    for part, other in zip(parts, plain):
        assert all(torch.equal(a, b) for a, b in zip(part.buffers(), other.buffers()))
