"""Models of several kinds, each of any number of parts, with data, loss and the plain loop."""

import rrfp
import torch
from models import train_plainly
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


class Tied(nn.Module):
    """Dropout between the layers; the last one has a copy of the first one's embedding as its head."""

    def __init__(self, index, count):
        super().__init__()
        self.is_whole = count == 1
        self.layers = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2), nn.GELU())
        if index == 0:
            self.embedding = nn.Embedding(30, 16)
            self.tied_parameter = "embedding.weight"
        elif index == count - 1:
            self.head = nn.Linear(16, 30, bias=False)
            self.tied_parameter = "head.weight"

    def forward(self, x):
        x = self.embedding(x) if hasattr(self, "embedding") else x
        x = x + self.layers(x)
        if self.is_whole:
            return functional.linear(x, self.embedding.weight)
        return self.head(x) if hasattr(self, "head") else x


def tie(parts):
    if len(parts) > 1:
        parts[-1].head.weight.data.copy_(parts[0].embedding.weight)


def add_tied_gradients(parts):
    if len(parts) > 1:
        owner, copy = parts[0].embedding.weight, parts[-1].head.weight
        owner.grad = copy.grad = owner.grad + copy.grad


class Normed(nn.Module):
    def __init__(self, index, count):
        super().__init__()
        self.convolution = nn.Conv2d(1, 1, 3, padding=1)
        self.norm = nn.BatchNorm2d(1)

    def forward(self, x):
        return functional.relu(self.norm(self.convolution(x)))


class Routed(nn.Module):
    """Sends each row to one of its experts, and passes the sum of the router losses on."""

    def __init__(self, index, count):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x, auxiliary=0.0):
        shares = self.router(x).softmax(-1)
        chosen = shares.argmax(-1)
        y = x
        for i in chosen.unique().tolist():
            at = (chosen == i).nonzero().flatten()
            y = y.index_add(0, at, self.experts[i](x[at]) * shares[at, i, None])
        balance = (shares.mean(0) * functional.one_hot(chosen, 4).float().mean(0)).sum()
        return y, auxiliary + balance


def loss_with_auxiliary(output, target):
    return functional.mse_loss(output[0], target) + 0.1 * output[1]


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


class Kind:
    def __init__(self, part, data, loss_fn, prepare=lambda parts: None, before_update=lambda parts: None):
        self.part, self.data, self.loss_fn = part, data, loss_fn
        self.prepare, self.before_update = prepare, before_update

    def make(self, stages):
        torch.manual_seed(stages)
        parts = [self.part(i, stages) for i in range(stages)]
        self.prepare(parts)
        return parts

    def batches(self):
        return [self.data(torch.Generator().manual_seed(step)) for step in range(3)]

    def train_plainly(self, parts):
        return train_plainly(
            parts,
            self.loss_fn,
            [(Splitting(x), y) for x, y in self.batches()],
            4,
            around=lambda step, mb, stage: rrfp.keyed_generator(3, step, mb, stage),
            before_update=self.before_update,
        )


KINDS = {
    "character LSTM": Kind(CharLstm, of_tokens, token_loss),
    "U-Net with skips": Kind(UNetLevel, of_pictures, functional.mse_loss),
    "encoder and decoder with two inputs": Kind(EncoderDecoder, of_two_inputs, token_loss),
    "LoRA": Kind(Lora, of_rows, functional.mse_loss),
    "dropout and tied weights": Kind(Tied, of_tokens, token_loss, tie, add_tied_gradients),
    "batch norm": Kind(Normed, of_pictures, functional.mse_loss),
    "experts with router losses": Kind(Routed, of_rows, loss_with_auxiliary),
}


class Splitting:
    """A tuple of tensors that the plain loop splits as it splits a tensor."""

    def __init__(self, values):
        self.values = values

    def tensor_split(self, n):
        return list(zip(*(value.tensor_split(n) for value in self.values)))
