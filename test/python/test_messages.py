"""What arrives at a part is what the part before returned, or is refused by name."""

import collections
import enum
import re

import pytest
import rrfp
import torch
from models import adam, equal, mlp, rows, train_plainly, twin
from torch import nn

mse = nn.functional.mse_loss


class Color(enum.IntEnum):
    RED = 1


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


Pair = collections.namedtuple("Pair", "left right")


class Adding(nn.Module):
    """Passes the rows on with what `make` returns."""

    def __init__(self, make):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.make = make

    def forward(self, x):
        return self.layer(x), self.make(x)


class Keeping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, other):
        self.other = other
        return self.layer(x)


def arrived(make, **settings):
    keeping = Keeping()
    x, y = rows(1)
    pipe = rrfp.Pipeline([Adding(make), keeping], mse, 6, optimizer=adam, settings=settings)
    try:
        pipe.step(x, target=y)
    finally:
        pipe.close()
    return keeping.other


Z = torch.randn(3, 2, dtype=torch.complex64)
BITS = {
    "complex": Z,
    "conjugated": Z.conj(),
    "negated": Z.conj().imag,
    "double": torch.randn(3, dtype=torch.float64),
    "bool": torch.tensor([True, False, True]),
    "uint16": torch.tensor([1, 65535], dtype=torch.uint16),
    "float8": torch.randn(5).to(torch.float8_e4m3fn),
    "bfloat16": torch.randn(5).to(torch.bfloat16),
    "nothing": torch.empty(0, 3, dtype=torch.complex128),
    "scalar": torch.tensor(3),
    "transposed": torch.randn(3, 4).t(),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one channel": torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "expanded": torch.randn(3, 1).expand(3, 4),
    "strided": torch.randn(3, 8)[:, ::2],
    "transposed integers": torch.arange(6).view(2, 3).t(),
    "column": torch.randn(4, 3)[:, 0],
    "every second number": torch.arange(10)[::2],
    "diagonal": torch.randn(4, 4).diagonal(),
    "eight dimensions": torch.randn(1, 1, 1, 1, 1, 1, 1, 4),
}


def test_tensors_arrive_with_their_bits_and_strides():
    got = arrived(lambda x: BITS)
    for name, sent in BITS.items():
        assert got[name].dtype == sent.dtype and got[name].shape == sent.shape, name
        assert got[name].stride() == sent.resolve_neg().stride() or sent.numel() == 0, name
        as_bytes = [t.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8) for t in (got[name], sent)]
        assert torch.equal(*as_bytes), name


def test_values_and_containers_keep_their_types():
    sent = {
        "size": torch.Size([2, 3]),
        "color": Color.RED,
        "access": Access.READ | Access.WRITE,
        "pair": Pair(1, [Pair(torch.ones(2), "text")]),
        "order": collections.OrderedDict(a=1.5),
        "none": None,
    }
    got = arrived(lambda x: sent)
    for name in ("size", "color", "access", "order", "none"):
        assert got[name] == sent[name] and type(got[name]) is type(sent[name]), name
    assert type(got["pair"]) is Pair and type(got["pair"].right[0]) is Pair
    assert torch.equal(got["pair"].right[0].left, torch.ones(2))


class Plain(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda x: torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8), "a quantized tensor of qint8"),
        (lambda x: torch.quantize_per_channel(x.detach(), torch.ones(16), torch.zeros(16), 1, torch.quint8), "quantized"),
        (lambda x: x.detach().to_sparse(), "a sparse or blocked tensor of float32"),
        (lambda x: x.detach().to_sparse_csr(), "a sparse or blocked tensor of float32"),
        (lambda x: torch.empty(2, device="meta"), "a meta tensor of float32"),
        (lambda x: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "a nested tensor of float32"),
        (lambda x: torch.ones(2).as_subclass(Plain), "expected plain tensors, got Plain"),
        (lambda x: {1, 2}, "got set"),
        (lambda x: enum.Enum("Local", "A").A, "got Local"),
    ],
)
def test_what_cannot_travel_is_refused_by_its_kind(make, kind):
    with pytest.raises(rrfp.Error, match=f"^stage 0, F.* between stages: .*{kind}"):
        arrived(make)


@pytest.mark.parametrize("key", [("layer", 1), b"layer", frozenset()])
def test_a_key_that_cannot_travel_is_refused_by_name(key):
    with pytest.raises(rrfp.Error, match=re.escape(f"expected dicts whose keys are strings or numbers, got {key!r}")):
        arrived(lambda x: {"inner": [{key: x}]})


@pytest.mark.parametrize("make", [lambda x: x.detach().to_sparse(), lambda x: torch.empty(4, 16, device="meta")])
def test_a_single_tensor_that_cannot_travel_is_refused(make):
    class Part(nn.Linear):
        def forward(self, x):
            return make(x)

    pipe = rrfp.Pipeline([Part(16, 16), *mlp(1)], mse, 6, optimizer=adam)
    x, y = rows(1)
    with pytest.raises(rrfp.Error, match="between stages: expected dense tensors, got a"):
        pipe.step(x, target=y)
    pipe.close()


class Convolution(nn.Module):
    def __init__(self, index):
        super().__init__()
        self.layer = nn.Conv2d(3 if index == 0 else 8, 8, 3, padding=1)
        self.is_first = index == 0

    def forward(self, x):
        if self.is_first:
            x = x.to(memory_format=torch.channels_last)
        else:
            assert x.is_contiguous(memory_format=torch.channels_last)
        return torch.relu(self.layer(x))


@pytest.mark.parametrize("policy", ["bfw", "zb_h1"])
def test_channels_last_gives_the_bits_of_a_plain_loop(policy):
    torch.manual_seed(2)
    parts = [Convolution(index) for index in range(3)]
    plain = twin(parts)
    batches = [(torch.randn(8, 3, 9, 9), torch.randn(8, 8, 9, 9)) for _ in range(3)]
    losses = []
    with rrfp.Pipeline(parts, mse, 4, optimizer=adam, policy=policy) as pipe:
        for x, y in batches:
            losses.append([])
            pipe.step(x, target=y, losses=losses[-1])
    assert losses == train_plainly(plain, mse, batches, 4)
    assert equal(parts, plain)
