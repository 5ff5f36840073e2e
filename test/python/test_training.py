"""Training with a pipeline equals a plain loop, to the last bit."""

import json

import pytest
import rrfp
import torch
from models import HALF, adam, equal, mlp, rows, rows_with_overflow, train_in_half, train_plainly, twin

loss_fn = torch.nn.functional.mse_loss
WAYS = {
    "bfw": {},
    "in order": {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b"},
    "zero bubble": {"dispatch.policy": "zb_h1"},
    "jitter": {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5},
    "recompute": {"pipeline.recompute": True},
    "two chunks": {"pipeline.chunks": 2, "dispatch.policy": "interleaved_1f1b"},
}


def train(parts, batches, loss_fn=loss_fn, **options):
    all_losses = []
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam, **options) as pipe:
        for x, y in batches:
            losses = []
            pipe.step(x, target=y, losses=losses)
            all_losses.append([loss.item() for loss in losses])
    return all_losses


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stages", [1, 2, 4])
def test_losses_and_weights_equal_those_of_a_plain_loop(stages, way):
    if way == "two chunks" and stages < 4:
        pytest.skip("needs two stages of two chunks")
    parts = mlp(stages)
    plain = twin(parts)
    batches = [rows(step) for step in range(3)]
    assert train(parts, batches, settings=WAYS[way]) == train_plainly(plain, loss_fn, batches, 6)
    assert equal(parts, plain)


def test_only_the_model_makes_tensors_on_the_default_device(tmp_path):
    """"meta" stands for it: nothing can be computed there."""
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)
    parts = mlp(2)
    plain = twin(parts)
    x, y = rows(0)
    expected = train_plainly(plain, loss_fn, [(x, y)] * 2, 6, sgd)
    settings = {"checkpoint.dir": str(tmp_path)}
    for losses_of_step in expected:
        losses = []
        with torch.device("meta"):
            options = {"n_microbatches": 6, "optimizer": sgd, "settings": settings, "on_note": lambda line: None}
            with rrfp.Pipeline(parts, loss_fn, **options) as pipe:
                pipe.step(x, target=y, losses=losses)
        assert [loss.item() for loss in losses] == losses_of_step
    assert equal(parts, plain)


# The second backend compiles again in threads of another pipeline.
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_modules(backend):
    def compiled(parts):
        parts[0].compile(backend=backend)
        return [parts[0], torch.compile(parts[1], backend=backend), *parts[2:]]

    parts = compiled(mlp(4))
    plain = compiled(mlp(4))
    batches = [rows(step) for step in range(3)]
    for options in ({"settings": WAYS["jitter"]}, {"policy": "zb_h1"}):
        assert train(parts, batches, **options) == train_plainly(plain, loss_fn, batches, 6)
    assert equal(parts, plain)


def test_a_policy_in_python_ranks_the_tasks(tmp_path):
    asked = []

    def last_first(stage, n_stages, n_microbatches):
        asked.append((stage, n_stages, n_microbatches))
        down = range(n_microbatches)[::-1]
        kinds = ("F", "BW") if stage == 0 else ("F", "B", "W")
        return [f"{kind}{mb}" for kind in kinds for mb in down]

    parts = mlp(2)
    plain = twin(parts)
    batches = [rows(step) for step in range(3)]
    # While the first task runs, all others become ready.
    delays = tmp_path / "delays.csv"
    delays.write_text("step,stage,chunk,mb,kind,ms\n" + "".join(f"1,0,0,{mb},F,50\n" for mb in range(6)))
    with rrfp.Pipeline(
        parts,
        loss_fn,
        n_microbatches=6,
        optimizer=adam,
        policy=last_first,
        slots=6,
        trace=True,
        settings={"jitter.delays": str(delays)},
    ) as pipe:
        losses = []
        for x, y in batches:
            losses.append([])
            pipe.step(x, target=y, losses=losses[-1])
        pipe.write_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    tasks = [e["name"] for e in events if e["ph"] == "X" and e["pid"] == 0 and e["cat"] != "wait"]
    assert set(tasks[:6]) == {f"F{mb}" for mb in range(6)}
    assert tasks[1:6] == sorted(tasks[1:6], reverse=True)
    assert "BW5" in tasks and "B5" not in tasks
    assert losses == train_plainly(plain, loss_fn, batches, 6)
    assert equal(parts, plain)
    assert set(asked) == {(0, 2, 6), (1, 2, 6)}


def test_errors_of_a_policy_in_python():
    def open_with(policy, **options):
        return rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=2, policy=policy, **options)

    def tasks(*names):
        return lambda stage, n_stages, n_microbatches: names

    with pytest.raises(rrfp.Error, match='expected tasks such as "F0".*got \'f0\''):
        open_with(tasks("f0"))
    with pytest.raises(rrfp.Error, match="B1 of stage 0 is missing"):
        open_with(tasks("F0", "F1", "BW0"))
    with pytest.raises(rrfp.Error, match="F7 of stage 0 does not exist"):
        open_with(tasks("F7"))
    with pytest.raises(ValueError, match="expected a name with"):
        open_with(tasks(), settings={"dispatch.mode": "in-order"})
    good = ["F0", "F1", "BW0", "BW1"]
    with open_with(lambda *at: good) as pipe:
        x, y = rows(1)
        pipe.step(x, target=y)
        good.pop()
        with pytest.raises(rrfp.Error, match="B1 of stage 0 is missing"):
            pipe.step(x, target=y)
        good.append("B1")
        good.append("W1")
        pipe.step(x, target=y)  # nothing had begun


def test_evaluation_returns_outputs_and_changes_nothing():
    parts = mlp(2)
    plain = twin(parts)
    x, y = rows(5)
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam) as pipe:
        losses = []
        output = pipe.eval(x, target=y, losses=losses)
        assert pipe.steps == 0 and pipe.leads
        assert pipe.last.gradient_norm == 0
        # Parts are in evaluation mode only during an evaluation that needs them.
        assert not parts[0].training
    with torch.no_grad():
        expected = [plain[1](plain[0](rows)) for rows in x.tensor_split(6)]
    assert torch.equal(output, torch.cat(expected))
    assert [loss.item() for loss in losses] == [
        loss_fn(o, t).item() for o, t in zip(expected, y.tensor_split(6))
    ]
    assert equal(parts, plain)


class Encoder(torch.nn.Module):
    """Gives the next part several tensors, of which one has no gradient and one is half as wide."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x, scale=None):
        h = self.linear(x)
        if scale is not None:
            h = h * scale
        return {"hidden": h, "half": h.bfloat16(), "mask": x > 0, "rows": x.size(0), "none": None}


class Decoder(torch.nn.Module):
    def __init__(self, is_last):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.is_last = is_last

    def forward(self, given):
        assert given["none"] is None and given["mask"].dtype == torch.bool
        assert given["rows"] == given["hidden"].size(0)
        h = self.linear(given["hidden"]) * given["mask"] + given["half"].float()
        return h if self.is_last else {**given, "half": given["half"] * 2, "hidden": h}


@pytest.mark.parametrize("way", list(WAYS)[:-1])
def test_parts_pass_several_tensors_of_any_type_and_skip_parts(way):
    torch.manual_seed(3)
    parts = [Encoder(), Decoder(False), Decoder(True)]
    plain = twin(parts)
    batches = [rows(step) for step in range(3)]
    assert train(parts, batches, settings=WAYS[way]) == train_plainly(plain, loss_fn, batches, 6)
    assert equal(parts, plain)


def test_microbatches_of_their_own_shapes():
    class Encoder(torch.nn.Module):
        """Pools a varying number of images into the first position of a text of varying length."""

        def __init__(self):
            super().__init__()
            self.words, self.images = torch.nn.Embedding(30, 8), torch.nn.Linear(5, 8)

        def forward(self, ids, pixels, scale=1.0):
            return torch.cat([self.images(pixels).mean(0).view(1, 1, 8), self.words(ids)], 1) * scale

    class Decoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(8, 30)

        def forward(self, x):
            return self.head(x[:, 1:])

    def draw(step):
        generator = torch.Generator().manual_seed(step)
        lengths = [(3, 1), (9, 4), (1, 2), (5, 7)]
        ids = [torch.randint(0, 30, (1, length), generator=generator) for length, _ in lengths]
        return [(i, torch.randn(images, 5, generator=generator)) for i, (_, images) in zip(ids, lengths)], ids

    def total(logits, ids):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="sum")

    torch.manual_seed(2)
    parts = [Encoder(), Decoder()]
    plain = twin(parts)
    optimizer = adam([p for part in plain for p in part.parameters()])
    with rrfp.Pipeline(
        parts, total, n_microbatches=4, optimizer=adam, count=torch.numel, settings=WAYS["jitter"]
    ) as pipe:
        for step in range(3):
            args, ids = draw(step)
            losses, expected = [], []
            scales = [{"scale": 0.5}] * 4
            outputs = pipe.step_microbatches(args, scales, target_mbs=ids, losses=losses)
            assert [output.shape for output in outputs] == [(1, i.size(1), 30) for i in ids]
            for one, target in zip(args, ids):
                loss = total(plain[1](plain[0](*one, scale=0.5)), target)
                (loss / sum(i.numel() for i in ids)).backward()
                expected.append(loss.item() / target.numel())
            optimizer.step()
            optimizer.zero_grad()
            assert [loss.item() for loss in losses] == expected
        assert equal(parts, plain)
        args, ids = draw(7)
        (first, *_) = pipe.eval_microbatches(args, target_mbs=ids)
        assert torch.equal(first, plain[1](plain[0](*args[0])))
        with pytest.raises(ValueError, match="target_mbs: expected 3 microbatches, got 4"):
            pipe.step_microbatches(args[:3], target_mbs=ids)


def test_keyword_arguments_reach_the_parts_that_name_them():
    torch.manual_seed(3)
    parts = [Encoder(), Decoder(True)]
    plain = twin(parts)
    x, y = rows(1)
    scale = torch.rand(24, 1)
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam) as pipe:
        output = pipe.eval(x, target=y, scale=scale)
    with torch.no_grad():
        assert torch.equal(output, plain[1](plain[0](x, scale=scale)))


def test_dropout_does_not_depend_on_order():
    torch.manual_seed(5)
    parts = [
        torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 16))
        for _ in range(3)
    ]
    batches = [rows(step) for step in range(3)]
    plain = twin(parts)
    before = torch.default_generator.get_state()
    around = lambda step, mb, stage: rrfp.keyed_generator(4, step, mb, stage)
    expected = train_plainly(plain, loss_fn, batches, 6, around=around)
    for way in list(WAYS.values())[:-1]:
        trained = twin(parts)
        assert train(trained, batches, settings=way, seed=4) == expected
        assert equal(trained, plain)
    assert torch.equal(before, torch.default_generator.get_state())


def test_a_float16_loss_is_scaled_in_float16():
    """As GradScaler scales it: 65536 is infinite there."""
    loss_fn = lambda output, target: (1 - output * target.half()).clamp(min=0).mean()
    plain, parts = mlp(2), mlp(2)
    batches = [rows(step) for step in range(3)]
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    optimizers = [adam(part.parameters()) for part in plain]
    skipped = []
    for x, y in batches:
        for inputs, target in zip(x.tensor_split(4), y.tensor_split(4)):
            with torch.autocast("cpu", torch.float16):
                loss = loss_fn(plain[1](plain[0](inputs)), target)
            scaler.scale(loss / 4).backward()
        before = scaler.get_scale()
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        is_finite = all(torch.isfinite(p.grad).all() for part in plain for p in part.parameters())
        for optimizer in optimizers:
            if is_finite:
                scaler.step(optimizer)
            optimizer.zero_grad()
        scaler.update(before if is_finite else before / 2)
        skipped.append(not is_finite)
    assert skipped == [True, False, False]
    settings = {"train.loss_scale": 2.0**16}
    with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, autocast=torch.float16, settings=settings) as pipe:
        for x, y in batches:
            pipe.step(x, target=y)
    assert equal(parts, plain)


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_float16_with_an_overflow_equals_a_plain_loop_with_torchs_grad_scaler(stages):
    batches = rows_with_overflow()
    plain = mlp(stages)
    expected, scales = train_in_half(plain, loss_fn, batches, 6)
    assert scales == [4096, 4096, 8192, 4096, 4096, 8192]
    parts = mlp(stages)
    losses, skipped = [], []
    with rrfp.Pipeline(
        parts,
        loss_fn,
        n_microbatches=6,
        optimizer=adam,
        autocast=torch.float16,
        settings={**HALF, **WAYS["jitter"]},
    ) as pipe:
        for x, y in batches:
            pipe.step(x, target=y, losses=losses)
            skipped.append(pipe.last.is_skipped)
    assert skipped == [False, False, True, False, False, False]
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=0, abs=0, nan_ok=True)
    assert equal(parts, plain)


def normed_parts():
    torch.manual_seed(5)
    return [torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)) for _ in range(2)]


def test_buffers_that_forward_changes_see_the_microbatches_in_order():
    batches = [rows(step) for step in range(3)]
    for policy in rrfp.policies():
        parts = normed_parts()
        plain = twin(parts)
        try:
            losses = train(parts, batches, policy=policy, settings=WAYS["jitter"])
        except rrfp.Error as e:
            assert e.kind == "bad_input" and str(e).startswith("policy: "), e  # needs two chunks, or a table
            continue
        assert losses == train_plainly(plain, loss_fn, batches, 6)
        assert equal(parts, plain)
        assert all(torch.equal(a, b) for p, q in zip(parts, plain) for a, b in zip(p.buffers(), q.buffers()))
    parts = normed_parts()
    parts[0].forwards_in_order = False
    with pytest.raises(rrfp.Error, match=r"stage 0, F. of step 1: .*the buffer '1.num_batches_tracked'"):
        train(parts, batches)


def test_checkpoints_have_the_buffers(tmp_path):
    plain = normed_parts()
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0)
    batches = [rows(step) for step in range(4)]
    expected = train_plainly(plain, loss_fn, batches, 6, optimizer=sgd)
    settings = {"train.optimizer": "sgd", "train.lr": 0.1, "train.lr_min": 0.1, "train.momentum": 0}
    settings.update({"train.weight_decay": 0, "train.clip_norm": 0, "checkpoint.dir": str(tmp_path)})
    for begin in (0, 2):
        parts = normed_parts()
        with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, settings=settings, on_note=lambda line: None) as pipe:
            assert pipe.steps == begin
            for step in range(begin, begin + 2):
                x, y = batches[step]
                losses = []
                pipe.step(x, target=y, losses=losses)
                assert [loss.item() for loss in losses] == expected[step]
    assert equal(parts, plain)
    assert torch.equal(parts[1][1].running_var, plain[1][1].running_var)


def test_sums_with_a_count_weigh_microbatches_by_their_terms():
    def sum_loss(output, target):
        return torch.nn.functional.cross_entropy(output, target, ignore_index=-1, reduction="sum")

    torch.manual_seed(1)
    parts = [torch.nn.Linear(16, 16), torch.nn.Linear(16, 5)]
    x, _ = rows(1)
    y = torch.randint(0, 5, (24,))
    y[3:9] = -1
    whole = twin(parts)
    (sum_loss(whole[1](whole[0](x)), y) / 18).backward()
    count = lambda target: int((target >= 0).sum())
    sgd = lambda parameters: torch.optim.SGD(parameters, 1.0)
    with rrfp.Pipeline(parts, sum_loss, n_microbatches=6, count=count, optimizer=sgd) as pipe:
        pipe.step(x, target=y)
        assert pipe.last.count == 18
    for part, other in zip(parts, whole):
        torch.testing.assert_close(part.weight, other.weight - other.weight.grad)


def test_autograd_functions_hooks_and_checkpointing_inside_a_part():
    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * 2

    class Unusual(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, x):
            y = torch.utils.checkpoint.checkpoint(self.linear, x, use_reentrant=False)
            y.register_hook(lambda gradient: gradient * 0.5)
            return Twice.apply(y)

    torch.manual_seed(2)
    parts = [Unusual(), Unusual(), Unusual()]
    plain = twin(parts)
    batches = [rows(step) for step in range(2)]
    assert train(parts, batches) == train_plainly(plain, loss_fn, batches, 6)
    assert equal(parts, plain)


def test_the_optimizer_of_the_settings_trains_too():
    parts = mlp(2)
    settings = {"train.optimizer": "sgd", "train.lr": 0.1, "train.lr_min": 0.1, "train.clip_norm": 0}
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, settings=settings) as pipe:
        first, last = [], []
        for step in range(20):
            pipe.step(*rows(1)[:1], target=rows(1)[1], losses=last if step else first)
        assert pipe.optimizers == []
        assert sum(last[-6:]) < sum(first)


def test_the_timeline_of_a_step_is_a_picture(tmp_path):
    with rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, trace=True) as pipe:
        with pytest.raises(rrfp.Error, match="expected a finished step"):
            pipe.report()
        for step in range(3):
            x, y = rows(step)
            pipe.step(x, target=y)
        svg = pipe.report()._repr_svg_()
        assert svg.startswith("<svg")
        for text in ("step 3: ", ">stage 1<", ">forward<", ">weight gradient<"):
            assert text in svg
        for step in (1, 2, 3):
            assert f"step {step}: " in pipe.report(step).svg
        with pytest.raises(rrfp.Error, match="no step 4"):
            pipe.report(4)
        with pytest.raises(rrfp.Error, match="no step 9"):
            pipe.report(9)
        pipe.report().save(tmp_path / "step.svg")
        assert (tmp_path / "step.svg").read_text() == svg
    pipe.write_trace(tmp_path / "trace.json")
    assert "traceEvents" in (tmp_path / "trace.json").read_text()
    with rrfp.Pipeline(mlp(2), loss_fn) as plain:
        with pytest.raises(rrfp.Error, match="trace=True"):
            plain.report()
