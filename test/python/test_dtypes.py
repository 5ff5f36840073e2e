"""Parameters of any type, and the optimizers that go with them: the bits of a plain loop."""

import pytest
import rrfp
import torch
from models import adam, equal, mlp, rows, train_plainly
from test_gradients import WAYS
from torch import nn

mse = nn.functional.mse_loss
N = 4


class Mixed(nn.Module):
    """A layer of one type between layers of another, as with norms that stay in float32."""

    def __init__(self, inner=torch.bfloat16):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.inner = nn.Linear(16, 16, dtype=inner)

    def forward(self, x):
        return x + self.inner(self.norm(x).to(self.inner.weight.dtype)).to(x.dtype)


class Complex(nn.Module):
    """A learned filter of frequencies."""

    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.view_as_complex(torch.randn(9, 2)))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(x) * self.filter, n=16)


def of_type(dtype):
    return lambda: [part.to(dtype) for part in mlp(2)]


def seeded(make):
    def made():
        torch.manual_seed(5)
        return make()

    return made


MODELS = {
    "bfloat16": (of_type(torch.bfloat16), torch.bfloat16),
    "float16": (of_type(torch.float16), torch.float16, lambda ps: torch.optim.SGD(ps, 1e-2)),
    "float64": (of_type(torch.float64), torch.float64),
    "bfloat16 beside float32": (seeded(lambda: [Mixed(), Mixed(), Mixed()]), torch.float32),
    "complex beside float32": (seeded(lambda: [nn.Linear(16, 16), Complex()]), torch.float32),
}


def batches_of(dtype):
    return [(x.to(dtype), y.to(dtype)) for x, y in (rows(step) for step in range(3))]


def train(parts, batches, optimizer=adam, settings=None):
    losses = []
    with rrfp.Pipeline(parts, mse, N, optimizer=optimizer, settings=settings) as pipe:
        for x, y in batches:
            losses.append([])
            pipe.step(x, target=y, losses=losses[-1])
    return [[loss.item() for loss in step] for step in losses]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("model", MODELS)
def test_parameters_of_other_types(model, way):
    make, dtype, *optimizers = MODELS[model]
    optimizer = optimizers[0] if optimizers else adam
    parts, plain = make(), make()
    expected = train_plainly(plain, mse, batches_of(dtype), N, optimizer=optimizer)
    assert train(parts, batches_of(dtype), optimizer, WAYS[way]) == expected
    assert equal(parts, plain)


class MasterWeights:
    """Updates float32 copies of bfloat16 parameters."""

    def __init__(self, parameters):
        self.parameters = list(parameters)
        self.copies = [p.detach().float() for p in self.parameters]
        self.inner = adam(self.copies)

    def step(self):
        for p, copy in zip(self.parameters, self.copies):
            copy.grad = None if p.grad is None else p.grad.float()
        self.inner.step()
        with torch.no_grad():
            for p, copy in zip(self.parameters, self.copies):
                p.copy_(copy)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


class MuonAndAdam:
    """Muon takes matrices alone."""

    def __init__(self, parameters):
        matrices = [p for p in parameters if p.dim() == 2]
        self.both = torch.optim.Muon(matrices, 0.02), adam([p for p in parameters if p.dim() != 2])

    def step(self):
        for one in self.both:
            one.step()

    def zero_grad(self):
        for one in self.both:
            one.zero_grad()


OPTIMIZERS = {
    "float32 master weights": (MasterWeights, torch.bfloat16),
    "AdamW with foreach": (lambda ps: torch.optim.AdamW(ps, 1e-2, foreach=True), torch.bfloat16),
    "fused AdamW": (lambda ps: torch.optim.AdamW(ps, 1e-2, fused=True), torch.float32),
    "Adafactor": (lambda ps: torch.optim.Adafactor(ps, 1e-2), torch.float32),
    "NAdam in float64": (lambda ps: torch.optim.NAdam(ps, 1e-2), torch.float64),
    **({"Muon": (MuonAndAdam, torch.float32)} if hasattr(torch.optim, "Muon") else {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    optimizer, dtype = OPTIMIZERS[name]
    parts, plain = of_type(dtype)(), of_type(dtype)()
    settings = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
    expected = train_plainly(plain, mse, batches_of(dtype), N, optimizer=optimizer)
    assert train(parts, batches_of(dtype), optimizer, settings) == expected
    assert equal(parts, plain)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_training_resumes(dtype, tmp_path):
    plain = of_type(dtype)()
    expected = train_plainly(plain, mse, batches_of(dtype) + batches_of(dtype), N)
    settings = {"checkpoint.dir": str(tmp_path)}
    got = []
    for _ in range(2):
        parts = of_type(dtype)()
        with rrfp.Pipeline(parts, mse, N, optimizer=adam, settings=settings, on_note=lambda line: None) as pipe:
            for x, y in batches_of(dtype):
                losses = []
                pipe.step(x, target=y, losses=losses)
                got.append([loss.item() for loss in losses])
    assert got == expected and equal(parts, plain)


def test_a_checkpoint_of_a_type_that_files_lack_is_refused_by_name(tmp_path):
    parts = seeded(lambda: [nn.Linear(16, 16), Complex()])()
    pipe = rrfp.Pipeline(parts, mse, N, optimizer=adam, settings={"checkpoint.dir": str(tmp_path)})
    x, y = rows(0)
    pipe.step(x, target=y)
    assert pipe.state_dict()["1.filter"].dtype == torch.complex64
    with pytest.raises(rrfp.Error, match="'1.filter': a checkpoint has no tensors of complex64"):
        pipe.save()
        pipe.finish()


def test_replaced_parameters_are_trained():
    parts, plain = mlp(2), mlp(2)
    state = [part.state_dict() for part in of_type(torch.float32)()]
    given = []

    def optimizer(parameters):
        given.append(torch.optim.SGD(parameters, 0.1))
        return given[-1]

    with rrfp.Pipeline(parts, mse, N, optimizer=optimizer) as pipe:
        for part, values in zip(parts, state):
            part.load_state_dict({name: value.clone() for name, value in values.items()}, assign=True)
        for made, part in zip(given, parts):
            made.param_groups[0]["params"] = list(part.parameters())
        x, y = rows(0)
        pipe.step(x, target=y)
    train_plainly(plain, mse, [rows(0)], N, optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    assert equal(parts, plain)
