"""Gradients that do not exist, are computed anew in backward, or have hooks: as in a plain loop, to the last bit."""

import contextlib
import functools
import sys

import pytest
import rrfp
import torch
from kinds import Routed
from models import adam, equal, rows, train_plainly, twin
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

loss_fn = nn.functional.mse_loss
JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
WAYS = {
    "split": {**JITTER, "dispatch.policy": "zb_h1"},
    "fused": {**JITTER, "dispatch.policy": "bf"},
    "in order": {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b"},
    "recompute": {**JITTER, "pipeline.recompute": True},
    "recompute, split": {**JITTER, "pipeline.recompute": True, "dispatch.policy": "zb_h1"},
}
sgd = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9, weight_decay=0.1)


class Branches(nn.Module):
    """Uses one layer always, one for some microbatches, and one never."""

    def __init__(self):
        super().__init__()
        self.used, self.sometimes, self.unused = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x, uses_all=None):
        y = self.used(x)
        if uses_all is None:
            uses_all = bool(x[0, 0] > 0.8)
        return y + self.sometimes(x) if uses_all else y


class Two(nn.Module):
    """What its second layer returns passes through the other parts, of which the last one drops it."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, y=None):
        return self.a(x), self.b(x if y is None else y)


class First(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, y):
        return self.layer(x)


class Constant(nn.Module):
    """Its output does not depend on its input."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(torch.ones_like(x))


class Experts(Routed):
    """The last one never gets a token."""

    def __init__(self):
        super().__init__(0, 1)
        nn.init.constant_(self.router.bias[3], -100.0)

    def forward(self, x):
        return super().forward(x)[0]


MODELS = {
    "one part": lambda: [Branches()],
    "two parts": lambda: [Branches(), Branches()],
    "outputs that nothing uses": lambda: [Two(), Two(), First()],
    "parts before a constant": lambda: [nn.Linear(16, 16), nn.Linear(16, 16), Constant(), nn.Linear(16, 16)],
}


def train(parts, batches, settings, n=4, optimizer=adam, **options):
    losses = []
    with rrfp.Pipeline(parts, loss_fn, n, optimizer=optimizer, settings=settings, seed=4, **options) as pipe:
        for x, y in batches:
            losses.append([])
            pipe.step(x, target=y, losses=losses[-1])
    return [[loss.item() for loss in step] for step in losses]


def check(begin, batches=None, ways=WAYS, optimizer=adam, n=4, autocast=None):
    """Returns the trained parts."""
    batches = batches or [rows(step) for step in range(3)]
    plain = twin(begin)

    def casting():
        return torch.autocast("cpu", autocast, enabled=autocast is not None)

    @contextlib.contextmanager
    def around(step, mb, stage):
        with rrfp.keyed_generator(4, step, mb, stage), casting():
            yield

    def loss(output, target):
        with casting():
            return loss_fn(output, target)

    expected = train_plainly(plain, loss, batches, n, optimizer=optimizer, around=around)
    for way, settings in ways.items():
        parts = twin(begin)
        assert train(parts, batches, settings, n, optimizer, autocast=autocast) == expected, way
        assert equal(parts, plain), way
    return plain


@pytest.mark.parametrize("optimizer", [adam, sgd])
@pytest.mark.parametrize("model", MODELS)
def test_a_parameter_without_a_gradient_stays(model, optimizer):
    torch.manual_seed(1)
    check(MODELS[model](), optimizer=optimizer)


@pytest.mark.parametrize("optimizer", [adam, sgd])
@pytest.mark.parametrize("way", WAYS)
def test_experts_without_tokens_stay(way, optimizer):
    torch.manual_seed(1)
    begin = [Experts(), Experts()]
    parts = check(begin, ways={way: WAYS[way]}, optimizer=optimizer)
    for part, before in zip(parts, begin):
        stays = [equal([a], [b]) for a, b in zip(part.experts, before.experts)]
        assert stays == [False, False, False, True]


def test_a_gradient_in_any_step_of_an_accumulation_counts(tmp_path):
    torch.manual_seed(1)
    begin = [Branches(), Branches()]
    plain = twin(begin)
    optimizers = [adam(part.parameters()) for part in plain]
    for step in range(6):
        x, y = rows(step)
        for inputs, target in zip(x.tensor_split(4), y.tensor_split(4)):
            for part in plain:
                inputs = part(inputs, step == 2)
            (loss_fn(inputs, target) / 4).backward()
        if step % 2 == 1:
            for o in optimizers:
                o.step()
                o.zero_grad()
    # The first half ends in a checkpoint, at which some parameters had no step.
    for half in (range(0, 2), range(2, 6)):
        parts = twin(begin)
        with rrfp.Pipeline(
            parts, loss_fn, 4, optimizer=adam, settings={"checkpoint.dir": str(tmp_path)}, on_note=lambda line: None
        ) as pipe:
            for step in half:
                x, y = rows(step)
                pipe.step_microbatches(
                    list(x.tensor_split(4)),
                    [{"uses_all": step == 2}] * 4,
                    list(y.tensor_split(4)),
                    update=step % 2 == 1,
                )
    assert equal(parts, plain)


def test_a_training_that_ends_while_gradients_wait_resumes_before_them(tmp_path):
    torch.manual_seed(1)
    begin = [nn.Linear(16, 16), nn.Linear(16, 16)]
    updates = [True, True, False, True]  # the gradients of the third step wait for the fourth

    def train(parts, steps, folder):
        settings = {"checkpoint.dir": str(folder), "checkpoint.every": 2}
        pipe = rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, settings=settings, on_note=lambda line: None)
        first = pipe.steps
        for at in range(first, steps):
            x, y = rows(at)
            pipe.step(x, target=y, update=updates[at])
        pipe.finish()
        return first

    whole, parts = twin(begin), twin(begin)
    assert train(whole, 4, tmp_path / "whole") == 0
    assert train(twin(begin), 3, tmp_path / "half") == 0
    assert train(parts, 4, tmp_path / "half") == 2
    assert equal(parts, whole)


class Cut(torch.autograd.Function):
    """Gives the gradient of its first input only, and none for some microbatches."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.has_none = bool(x[0, 0] > 0)
        return x + y

    @staticmethod
    def backward(ctx, gradient):
        return None if ctx.has_none else gradient, None


class Cutting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(Cut.apply(x, x))


def test_a_part_may_have_no_gradient_for_its_input():
    torch.manual_seed(3)
    check([nn.Linear(16, 16), Cutting(), nn.Linear(16, 16)])


class Noisy(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.generator = torch.Generator().manual_seed(0)

    def forward(self, x):
        return self.layer(x + torch.randn(x.shape, generator=self.generator))


def test_recomputation_with_other_numbers_is_refused():
    x, y = rows(1)
    for parts, where in (([Noisy(), nn.Linear(16, 16)], "stage 0"), ([nn.Linear(16, 16), Noisy()], "stage 1")):
        with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, settings=WAYS["recompute"]) as pipe:
            with pytest.raises(rrfp.Error, match=f"{where}, B.* of step 1: .*forward gives other values when backward runs it"):
                pipe.step(x, target=y)


@pytest.mark.parametrize("optimizer", [torch.optim.NAdam, torch.optim.RAdam])
def test_float32_states_of_bfloat16_parameters_resume(tmp_path, optimizer):
    torch.manual_seed(5)
    begin = [nn.Linear(16, 16).bfloat16() for _ in range(2)]

    def train(parts, steps, folder):
        with rrfp.Pipeline(
            parts,
            loss_fn,
            4,
            optimizer=lambda parameters: optimizer(parameters, 1e-2),
            settings={"checkpoint.dir": str(folder)},
            on_note=lambda line: None,
        ) as pipe:
            for at in range(pipe.steps, steps):
                x, y = rows(at)
                pipe.step(x.bfloat16(), target=y.bfloat16())

    whole = twin(begin)
    train(whole, 6, tmp_path / "whole")
    train(twin(begin), 3, tmp_path / "half")
    parts = twin(begin)
    train(parts, 6, tmp_path / "half")
    assert equal(parts, whole)


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.is_cell = kind.__name__.endswith("Cell")
        self.layer = kind(16, 16) if self.is_cell else kind(16, 16, batch_first=True)

    def forward(self, x):
        if not self.is_cell:
            return self.layer(x)[0]
        state, outputs = None, []
        for row in x.unbind(1):
            state = self.layer(row, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.stack(outputs, 1)


def sequences(step):
    x, y = rows(step, 24 * 5)
    return x.view(24, 5, 16), y.view(24, 5, 16)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_recomputed_recurrent_layers(kind):
    torch.manual_seed(2)
    check([Recurrent(kind) for _ in range(3)], [sequences(step) for step in range(2)])


def test_a_forward_that_asks_for_the_gradient_mode():
    class Asking(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if torch.is_grad_enabled() else 1)

    torch.manual_seed(2)
    check([Asking(16, 16) for _ in range(3)])


class Dropping(nn.Module):
    def __init__(self, p=0.2, **options):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(p), nn.Tanh(), nn.Linear(16, 16))
        self.options = options

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False, **self.options) if self.options else self.inner(x)


def save_products(ctx, op, *args, **kwargs):
    is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


WHOLE = {"determinism_check": "default"}
SELECTIVE = {"context_fn": functools.partial(create_selective_checkpoint_contexts, save_products)}


@pytest.mark.parametrize("options", [WHOLE, SELECTIVE], ids=["whole", "selective"])
def test_checkpoints_with_dropout_beside_other_parts(options):
    before = torch.get_rng_state()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    for parts in (
        [Dropping(**options) for _ in range(3)],
        [Dropping(0.0, **options), Dropping(), Dropping(0.0, **options)],
        [Dropping(), Dropping(**options)],
        [Dropping(**options)],
    ):
        torch.set_rng_state(state)
        check(parts, [rows(step, 64) for step in range(3)], ways={**WAYS, "default": {}}, n=8)
        assert torch.equal(torch.get_rng_state(), state)
    torch.set_rng_state(before)


@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, WHOLE, SELECTIVE], ids=["none", "whole", "selective"])
def test_recomputed_dropout_in_half_precision(options, autocast):
    torch.manual_seed(3)
    check([Dropping(**options) for _ in range(3)], autocast=autocast)


def test_the_backward_of_a_reentrant_checkpoint_stays_whole():
    class Reentrant(nn.Linear):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=True)

    check([nn.Linear(16, 16), Reentrant(16, 16), Reentrant(16, 16)])

    parts = [nn.Linear(16, 16), Reentrant(16, 16)]
    parts[1].weight.register_post_accumulate_grad_hook(lambda p: None)
    with pytest.raises(rrfp.Error, match="use_reentrant=False"):
        train(parts, [rows(0)], WAYS["split"])


class Product(nn.Module):
    """Uses what arrives in several matrix products."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        x = x.float()
        return x + self.a(x) * self.b(x) + self.c(x)


@pytest.mark.parametrize("passed", [lambda x: x, lambda x: (x,)], ids=["alone", "in a tuple"])
def test_an_input_that_autocast_casts_several_times(passed):
    class Passing(Product):
        def forward(self, x):
            return passed(super().forward(x))

    torch.manual_seed(1)
    check([Passing(), Passing(), Product()], autocast=torch.bfloat16)


class Conjugates(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64) / 4)

    def forward(self, x):
        return torch.view_as_real(x.cfloat() @ self.weight.conj()).sum(-1)


class Head(nn.Module):
    """An embedding with sparse gradients, in some microbatches beside dense ones."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(16, 16, sparse=True)

    def forward(self, x):
        y = x + self.embedding((x[:, 0].abs() * 8).long().clamp(max=15))
        return y + y @ self.embedding.weight if bool(x[0, 1] > 0) else y


@pytest.mark.parametrize("part", [Conjugates, Head])
def test_gradients_of_other_kinds_are_added_as_torch_does(part):
    torch.manual_seed(1)
    check([part(), part()], optimizer=lambda parameters: torch.optim.SGD(parameters, 0.1))


def test_a_loss_that_draws_changes_no_other_numbers():
    def loss(output, target):
        return loss_fn(output, target * torch.rand(len(target), 1))

    class Dropping(nn.Linear):
        def forward(self, x):
            return nn.functional.dropout(super().forward(x), 0.3)

    torch.manual_seed(1)
    begin = [Dropping(16, 16) for _ in range(3)]
    plain, batches = twin(begin), [rows(step) for step in range(3)]

    def around(step, mb, stage):
        keyed_loss.at = (4, step, mb, 3)
        return rrfp.keyed_generator(4, step, mb, stage)

    def keyed_loss(output, target):
        with rrfp.keyed_generator(*keyed_loss.at):
            return loss(output, target)

    expected = train_plainly(plain, keyed_loss, batches, 4, around=around)
    for way, settings in WAYS.items():
        parts, losses = twin(begin), []
        with rrfp.Pipeline(parts, loss, 4, optimizer=adam, settings=settings, seed=4) as pipe:
            for x, y in batches:
                losses.append([])
                pipe.step(x, target=y, losses=losses[-1])
        assert [[value.item() for value in of_step] for of_step in losses] == expected, way
        assert equal(parts, plain), way


def clip(parameter):
    parameter.grad.clamp_(-1e-3, 1e-3)


@pytest.mark.parametrize("way", WAYS)
def test_hooks_of_accumulation_run_after_each_microbatch(way):
    def hooked(parts):
        calls, ends = [], []
        for part in parts:
            for p in part.parameters():
                p.register_post_accumulate_grad_hook(clip)
                p.register_post_accumulate_grad_hook(lambda p: calls.append("after"))
                end = p.view_as(p).grad_fn.next_functions[0][0]
                end.register_prehook(lambda gradients: (calls.append("before"), (gradients[0] * 2,))[1])
                end.register_hook(lambda inputs, outputs: calls.append("at the end"))
                p.register_hook(lambda gradient: (calls.append("tensor"), gradient * 3)[1])
                ends.append(end)  # a parameter does not keep it alive
        return calls, ends

    torch.manual_seed(2)
    parts = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(2)]
    plain = twin(parts)
    calls, ends = hooked(parts)
    plain_calls, plain_ends = hooked(plain)
    batches = [rows(step) for step in range(2)]
    assert train(parts, batches, WAYS[way]) == train_plainly(plain, loss_fn, batches, 4)
    assert equal(parts, plain)
    assert sorted(calls) == sorted(plain_calls) and len(calls) == 4 * 8 * 4 * 2


@pytest.mark.parametrize("way", WAYS)
def test_hooks_of_accumulation_nodes_see_what_the_microbatches_before_have_left(way):
    def hooked(parts):
        ends = []
        for p in (p for part in parts for p in part.parameters()):
            ends.append(p.view_as(p).grad_fn.next_functions[0][0])
            ends[-1].register_hook(lambda inputs, outputs, p=p: (p.grad.mul_(0.9), None)[1])
        return ends

    torch.manual_seed(2)
    parts = [nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)) for _ in range(2)]
    plain = twin(parts)
    ends = hooked(parts), hooked(plain)
    batches = [rows(step) for step in range(2)]
    assert train(parts, batches, WAYS[way]) == train_plainly(plain, loss_fn, batches, 4)
    assert equal(parts, plain) and all(ends)


def test_hooks_of_modules_run_once_in_each_microbatch():
    calls = []

    def hooked(parts):
        for part in parts:
            part.register_full_backward_hook(lambda module, inputs, outputs: calls.append("after"))
            part.register_full_backward_pre_hook(lambda module, outputs: (calls.append("before"), (outputs[0] * 2,))[1])
        return parts

    def parts():
        torch.manual_seed(2)
        return hooked([nn.Linear(16, 16) for _ in range(3)])

    plain, batches = parts(), [rows(step) for step in range(2)]
    expected = train_plainly(plain, loss_fn, batches, 4)
    expected_calls, calls = calls, []
    trained = parts()
    assert train(trained, batches, WAYS["split"]) == expected
    assert equal(trained, plain) and sorted(calls) == sorted(expected_calls)


@pytest.mark.parametrize("way", WAYS)
def test_retained_gradients_and_hooks_on_several_are_those_of_a_loop(way):
    """Of intermediate values; a hook of register_multi_grad_hook() wants its gradients from one backward."""
    kept, calls = [], []

    class Keeping(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            for value in (x, h):
                if value.requires_grad:
                    value.retain_grad()
                    kept.append(value)
            return self.second(h)

    def run(training):
        torch.manual_seed(3)
        parts = [Keeping() for _ in range(3)]
        for part in parts:
            parameters = list(part.parameters())
            torch.autograd.graph.register_multi_grad_hook(
                parameters, lambda grads: calls.append(sum(g.double().abs().sum().item() for g in grads))
            )
        kept.clear(), calls.clear()
        losses = training(parts)
        return losses, sorted(h.grad.double().sum().item() for h in set(kept) if h.grad is not None), sorted(calls), parts

    batches = [rows(step) for step in range(2)]
    expected = run(lambda parts: train_plainly(parts, loss_fn, batches, 4))
    found = run(lambda parts: train(parts, batches, WAYS[way]))
    assert found[0] == expected[0] and equal(found[3], expected[3])
    assert found[1] == expected[1] and len(found[2]) == len(expected[2]) and found[2] == expected[2]


def test_an_optimizer_in_a_hook_is_refused():
    parts = [nn.Linear(16, 16) for _ in range(2)]
    for p in parts[0].parameters():

        def update(p, optimizer=torch.optim.SGD([p], 0.1)):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(update)
    with pytest.raises(rrfp.Error, match="a hook changes a parameter of .*expected the pipeline's optimizer"):
        train(parts, [rows(0)], {})


def test_a_hook_that_changes_a_parameter_without_a_version_is_refused():
    parts = [nn.Linear(16, 16) for _ in range(2)]

    def update(p):
        p.data.sub_(p.grad, alpha=0.1)

    parts[0].weight.register_post_accumulate_grad_hook(update)
    with pytest.raises(rrfp.Error, match="a hook changes a parameter of .*expected the pipeline's optimizer"):
        train(parts, [rows(0)], {})


def test_hooks_of_parameters_are_refused_where_replicas_share_a_process():
    parts = [nn.Linear(16, 16) for _ in range(2)]
    parts[1].bias.register_hook(lambda gradient: gradient * 0)
    with pytest.raises(rrfp.Error, match="a hook on the parameter 'bias', whose copy in another replica has none"):
        train(parts, [rows(0)], {"pipeline.replicas": 2})


def test_replicas_that_share_a_process_do_not_take_each_other_for_hooks():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        parts = [nn.Sequential(*(nn.Linear(16, 16) for _ in range(6))) for _ in range(2)]
        train(parts, [rows(step) for step in range(12)], {"pipeline.replicas": 3})
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.parametrize("policy", ["bf", "zb_h1"])
@pytest.mark.parametrize("kind", ["post_accumulate_grad_hook", "hook"])
def test_what_a_hook_raises_is_the_error_of_the_step(kind, policy):
    def fail(value):
        raise LookupError("no such gradient")

    parts = [nn.Linear(16, 16) for _ in range(2)]
    getattr(parts[0].weight, f"register_{kind}")(fail)
    with pytest.raises(rrfp.Error, match="stage 0, .*no such gradient"):
        train(parts, [rows(0)], {"dispatch.policy": policy})
