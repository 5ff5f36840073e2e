"""Graphs whose backward is easily cut wrongly, and programs that meet a pipeline half-way: the bits of a plain loop."""

import pytest
import rrfp
import torch
from models import adam, equal, mlp, rows, train_plainly, twin
from test_gradients import check, loss_fn
from torch import nn


class Of(nn.Module):
    """A part from its parameters and a function of (self, *inputs)."""

    def __init__(self, forward, **values):
        super().__init__()
        self.function = forward
        for name, value in values.items():
            setattr(self, name, value)

    def forward(self, *inputs):
        return self.function(self, *inputs)


def linear():
    return nn.Linear(16, 16)


def vector(*sizes):
    return nn.Parameter(torch.randn(*sizes) * 0.1)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient * weight, (gradient * x).sum(0)


def halved(x):
    x.register_hook(lambda gradient: gradient * 0.5)
    return x


def halved_before(x):
    if x.grad_fn is not None:
        x.grad_fn.register_prehook(lambda gradients: (gradients[0] * 0.5,))
    return x


def used_thrice(m, x):
    h = torch.tanh(m.a(x))
    return h, h, h


def weights_alone(m, x):
    t = torch.tanh(m.w * 2)
    return t, torch.tanh(m.a(x)) + t


def normed():
    def forward(m, x):
        y = m.n(x.view(-1, 4, 2, 2).contiguous(memory_format=torch.channels_last))
        return m.a(y.flatten(1))

    return Of(forward, n=nn.GroupNorm(2, 4), a=linear())


GRAPHS = {
    # The gradient of a position is a view of what the stage before gets.
    "a position beside each row": lambda: [
        Of(lambda m, x: m.a(x), a=linear()),
        Of(lambda m, x: m.a(torch.tanh(x + m.p.unsqueeze(0))), p=vector(16), a=linear()),
    ],
    "a weight as output": lambda: [
        Of(lambda m, x: torch.tanh(m.a(x)), a=linear()),
        Of(lambda m, x: (torch.tanh(m.a(x)), m.a.weight), a=linear()),
        Of(lambda m, x, w: m.a(x) @ w, a=linear()),
    ],
    "an output of weights alone": lambda: [
        Of(lambda m, x: m.a(x), a=linear()),
        Of(weights_alone, w=vector(16), a=linear()),
        Of(lambda m, t, x: m.a(x * t), a=linear()),
    ],
    "hooks on tensors": lambda: [
        Of(lambda m, x: m.a(x), a=linear()),
        Of(lambda m, x: m.b(torch.tanh(halved(m.a(x)))), a=linear(), b=linear()),
    ],
    "hooks on nodes": lambda: [
        Of(lambda m, x: halved_before(m.a(x)), a=linear()),
        Of(lambda m, x: m.b(torch.tanh(halved_before(m.a(x)))), a=linear(), b=linear()),
    ],
    "a weight before and after another": lambda: [
        Of(lambda m, x: m.a(x), a=linear()),
        Of(lambda m, x: m.a(torch.tanh(m.b(torch.tanh(m.a(x))))), a=linear(), b=linear()),
    ],
    "a function of Python with a weight": lambda: [
        Of(lambda m, x: m.a(x), a=linear()),
        Of(lambda m, x: m.a(Scaled.apply(x, m.w)), a=linear(), w=vector(16)),
        linear(),
    ],
    "one output thrice": lambda: [
        Of(used_thrice, a=linear()),
        Of(lambda m, q, k, v: m.a(q) @ m.b(k).t() @ m.c(v), a=linear(), b=linear(), c=linear()),
    ],
    # Torch computes the gradients of its weights alone only in the other order.
    "a group norm in channels-last order": lambda: [Of(lambda m, x: m.a(x), a=linear()), normed()],
    "a part without parameters": lambda: [linear(), nn.Tanh(), linear()],
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name):
    torch.manual_seed(3)
    n = 24 if "each row" in name else 4
    optimizer = (lambda ps: adam(ps) if ps else None) if "without" in name else adam

    class Nothing:
        def step(self):
            pass

        zero_grad = step

    check(GRAPHS[name](), n=n, optimizer=lambda ps: optimizer(ps) or Nothing())


def test_a_group_norm_in_channels_last_order_with_a_hook():
    def halve(p):
        p.grad.mul_(0.5)

    torch.manual_seed(3)
    for policy in ("bf", "zb_h1"):
        parts = [linear(), normed()]
        parts[1].n.weight.register_post_accumulate_grad_hook(halve)
        plain = twin(parts)
        plain[1].n.weight.register_post_accumulate_grad_hook(halve)  # a copy has none
        batches = [rows(step) for step in range(3)]
        with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, policy=policy) as pipe:
            for x, y in batches:
                pipe.step(x, target=y)
        train_plainly(plain, loss_fn, batches, 4)
        assert equal(parts, plain)


def test_autocast_of_a_weight_that_is_used_twice():
    torch.manual_seed(3)
    twice = lambda: Of(lambda m, x: m.a(torch.tanh(m.b(torch.tanh(m.a(x))))), a=linear(), b=linear())
    check([twice() for _ in range(4)], [rows(step, 64) for step in range(4)], n=16, autocast=torch.bfloat16)


def test_a_step_that_failed_leaves_no_gradients():
    parts, plain = mlp(2), mlp(2)
    calls = []

    def failing(output, target):
        calls.append(1)
        if len(calls) == 4:
            raise LookupError("once")
        return loss_fn(output, target)

    x, y = rows(0)
    with pytest.raises(rrfp.Error, match="once"):
        rrfp.Pipeline(parts, failing, 6, optimizer=adam).step(x, target=y)
    with rrfp.Pipeline(parts, loss_fn, 6, optimizer=adam) as pipe:
        pipe.step(x, target=y, update=False)
    assert all(p.grad is None for part in parts for p in part.parameters())
    with rrfp.Pipeline(parts, loss_fn, 6, optimizer=adam) as pipe:
        pipe.step(x, target=y)
    train_plainly(plain, loss_fn, [(x, y)], 6)
    assert equal(parts, plain)


def test_modules_in_evaluation_mode_stay_there():
    parts = [nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5)) for _ in range(2)]
    parts[0][1].eval()
    x, y = rows(0)
    with rrfp.Pipeline(parts, loss_fn, 6, optimizer=adam) as pipe:
        pipe.step(x, target=y)
        pipe.eval(x, target=y)
        assert not parts[1][1].training
        pipe.step(x, target=y)
    assert [part[1].training for part in parts] == [False, True]


def test_what_a_step_cannot_do_is_refused():
    x, y = rows(0)
    shared = nn.Linear(16, 16)
    with pytest.raises(rrfp.Error, match="parts 0 and 1 share the parameter 'weight'"):
        rrfp.Pipeline(lambda index, count: shared, loss_fn, 6, n_stages=2)
    with rrfp.Pipeline(mlp(2), loss_fn, 6, optimizer=adam) as pipe:
        with torch.inference_mode(), pytest.raises(ValueError, match="inference_mode"):
            pipe.step(x, target=y)
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ValueError, match="autocast"):
            pipe.step(x, target=y)
        pipe.step(x, target=y)
    parts = [nn.Linear(16, 16), Of(lambda m, x, ids: m.a(x) * ids.add_(1), a=linear())]
    first = Of(lambda m, x: (m.a(x), torch.ones(16, dtype=torch.int64)), a=parts[0])
    pipe = rrfp.Pipeline([first, parts[1]], loss_fn, 6, optimizer=adam, settings={"pipeline.recompute": True})
    with pytest.raises(rrfp.Error, match="changes its input in place"):
        pipe.step(x, target=y)


def test_freezing_reaches_all_replicas():
    parts, plain = mlp(2), mlp(2)
    with rrfp.Pipeline(parts, loss_fn, 3, optimizer=adam, settings={"pipeline.replicas": 2}) as pipe:
        before = twin(parts)
        pipe.stages[0].requires_grad_(False)
        x, y = rows(0)
        pipe.step(x, target=y)
    assert equal(parts[:1], before[:1]) and not equal(parts[1:], before[1:])
    assert equal(before, plain)
