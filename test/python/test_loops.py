"""What programs do around step(): freezing, accumulation, schedules, averages, checkpoints, progress."""

import io
import time

import pytest
import rrfp
import torch
from models import adam, equal, mlp, rows, twin

loss_fn = torch.nn.functional.mse_loss
N = 6
JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}


def no_notes(line):
    pass


class PlainLoop:
    """The same without a pipeline."""

    def __init__(self, parts, optimizer=adam):
        self.parts = parts
        self.optimizers = [optimizer(Named(part, i)) for i, part in enumerate(parts)]

    def step(self, x, y, update=True):
        losses = []
        for value, target in zip(x.tensor_split(N), y.tensor_split(N)):
            for part in self.parts:
                value = part(value)
            loss = loss_fn(value, target)
            (loss / N).backward()
            losses.append(loss.item())
        for o in self.optimizers if update else ():
            o.step()
            o.zero_grad()
        return losses


class Named(list):
    """The parameters of a part as the pipeline gives them to an optimizer's function."""

    def __init__(self, part, index):
        super().__init__(part.parameters())
        self.names = [f"{index}.{name}" for name, _ in part.named_parameters()]

    def named(self):
        return list(zip(self.names, self))


def open_pipeline(parts, optimizer=adam, **options):
    options.setdefault("settings", JITTER)
    return rrfp.Pipeline(parts, loss_fn, n_microbatches=N, optimizer=optimizer, on_note=no_notes, **options)


def step_of(pipe, x, y, **options):
    losses = []
    pipe.step(x, target=y, losses=losses, **options)
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("policy", ["bfw", "zb_h1"])
def test_parameters_are_frozen_and_thawed_between_steps(policy):
    def freeze(parts, step):
        parts[0].requires_grad_(not 2 <= step < 4)
        parts[1][0][0].bias.requires_grad_(step < 3)

    parts = mlp(2)
    plain = PlainLoop(twin(parts))
    with open_pipeline(parts, policy=policy) as pipe:
        for step in range(6):
            freeze(parts, step)
            freeze(plain.parts, step)
            before = twin(parts)
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
            assert equal(parts[:1], before[:1]) == (2 <= step < 4)
    assert equal(parts, plain.parts)


def test_gradients_accumulate_over_steps():
    parts = mlp(4)
    plain = PlainLoop(twin(parts))
    with open_pipeline(parts) as pipe:
        for step in range(6):
            update = step % 3 == 2
            before = twin(parts)
            assert step_of(pipe, *rows(step), update=update) == plain.step(*rows(step), update=update)
            assert equal(parts, before) != update
            assert pipe.eval(rows(9)[0], target=rows(9)[1]) is not None  # gradients wait
        assert pipe.steps == 6
    assert equal(parts, plain.parts)


@pytest.mark.parametrize("clip_norm", [0.0, 0.1])
def test_counted_losses_are_averaged_over_an_accumulation(clip_norm):
    def summed(output, target):
        return (((output - target) ** 2).mean(1) * (target[:, 0] > 0)).sum()

    def terms(target):
        return int((target[:, 0] > 0).sum())

    parts = mlp(2)
    plain = twin(parts)
    optimizers = [adam(list(part.parameters())) for part in plain]
    weights = [p for part in plain for p in part.parameters()]
    with rrfp.Pipeline(
        parts, summed, N, optimizer=adam, count=terms, settings={**JITTER, "train.clip_norm": clip_norm}
    ) as pipe:
        for step in range(0, 6, 3):
            batches = [rows(step), rows(step + 1, 2 * N), rows(step + 2, 5 * N)]
            counts = [terms(y) for _, y in batches]
            for k, (x, y) in enumerate(batches):
                pipe.step(x, target=y, update=k == 2)
                assert pipe.last.count == counts[k]
                for value, target in zip(x.tensor_split(N), y.tensor_split(N)):
                    for part in plain:
                        value = part(value)
                    (summed(value, target) / counts[0]).backward()
            for p in weights:
                p.grad.mul_(counts[0] / sum(counts))
            norm = torch.nn.utils.clip_grad_norm_(weights, clip_norm or float("inf"))
            assert pipe.last.gradient_norm == pytest.approx(norm.item(), 1e-6)
            for o in optimizers:
                o.step()
                o.zero_grad()
    for p, q in zip((p for part in parts for p in part.parameters()), weights):
        assert torch.equal(p, q) if not clip_norm else torch.allclose(p, q, 1e-5, 1e-6)


def test_groups_of_parameters_have_names():
    seen = []

    def optimizer(params):
        seen.extend(name for name, _ in params.named())
        biases = [p for name, p in params.named() if name.endswith("bias")]
        others = [p for name, p in params.named() if not name.endswith("bias")]
        return torch.optim.AdamW(
            [{"params": biases, "weight_decay": 0.0}, {"params": others, "weight_decay": 0.3}], 1e-2
        )

    parts = mlp(2)
    plain = PlainLoop(twin(parts), optimizer)
    expected, seen[:] = list(seen), []
    with open_pipeline(parts, optimizer) as pipe:
        assert sorted(seen) == sorted(expected)
        for step in range(3):
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
    assert equal(parts, plain.parts)


def test_schedules_of_the_rate_and_averages_of_weights():
    def around(parts, optimizers):
        schedules = [torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5**step) for o in optimizers]
        averages = [torch.optim.swa_utils.AveragedModel(part) for part in parts]

        def after_step():
            for schedule in schedules:
                schedule.step()
            for average, part in zip(averages, parts):
                average.update_parameters(part)

        return averages, after_step

    parts = mlp(2)
    plain = PlainLoop(twin(parts))
    plain_averages, after_plain_step = around(plain.parts, plain.optimizers)
    with open_pipeline(parts) as pipe:
        averages, after_step = around([pipe.stages[i] for i in range(2)], pipe.optimizers)
        for step in range(4):
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
            after_step()
            after_plain_step()
    assert equal(parts, plain.parts)
    assert equal(averages, plain_averages)


@pytest.mark.parametrize(
    "optimizer",
    [
        adam,
        lambda params: torch.optim.SGD(params, 0.1, momentum=0.9),
        lambda params: torch.optim.SGD(params, 0.1),
        lambda params: torch.optim.ASGD(params, 0.1),
    ],
    ids=["AdamW", "SGD with momentum", "SGD", "ASGD"],
)
def test_a_training_resumes_with_the_optimizer_of_the_program(tmp_path, optimizer):
    plain = PlainLoop(mlp(2), optimizer)
    settings = {**JITTER, "checkpoint.dir": str(tmp_path)}
    for begin in (0, 3):
        parts = mlp(2)
        with open_pipeline(parts, optimizer, settings=settings) as pipe:
            assert pipe.steps == begin
            for step in range(begin, begin + 3):
                assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
    assert equal(parts, plain.parts)


SCHEDULERS = {
    "warm-up": lambda o, **at: torch.optim.lr_scheduler.LambdaLR(o, lambda step: min(1.0, (step + 1) / 4), **at),
    "cosine": lambda o, **at: torch.optim.lr_scheduler.CosineAnnealingLR(o, 6, **at),
    "one cycle": lambda o, **at: torch.optim.lr_scheduler.OneCycleLR(o, 0.05, total_steps=8, **at),
}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("tensor_lr", [False, True])
def test_a_training_resumes_with_its_scheduler(tmp_path, scheduler, tensor_lr):
    def optimizer(params):
        lr = torch.tensor(1e-2, dtype=torch.float64) if tensor_lr else 1e-2
        biases = [p for name, p in params.named() if name.endswith("bias")]
        others = [p for name, p in params.named() if not name.endswith("bias")]
        return torch.optim.AdamW([{"params": biases, "lr": lr / 2}, {"params": others}], lr, (0.8, 0.9))

    plain = PlainLoop(mlp(2), optimizer)
    expected = [SCHEDULERS[scheduler](o) for o in plain.optimizers]
    for begin in (0, 3):
        parts = mlp(2)
        with open_pipeline(parts, optimizer, settings={**JITTER, "checkpoint.dir": str(tmp_path)}) as pipe:
            assert pipe.steps == begin
            schedulers = [SCHEDULERS[scheduler](o, last_epoch=pipe.steps - 1) for o in pipe.optimizers]
            for step in range(begin, begin + 3):
                assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
                for each in (*schedulers, *expected):
                    each.step()
            pipe.save()  # with the rates of the next step
    assert equal(parts, plain.parts)


def test_the_rates_of_a_schedule_move_to_a_pipeline_with_other_stages():
    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(4)])

    def parts_of(count):
        class Part(torch.nn.Sequential):
            def name_of_parameter(self, name):
                return f"{self.first + int(name.split('.')[0])}.{name.split('.')[1]}"

        parts = []
        for i in range(count):
            parts.append(Part(*twin(model)[i * 4 // count : (i + 1) * 4 // count]))
            parts[-1].first = i * 4 // count
        return parts

    with open_pipeline(parts_of(2)) as pipe:
        step_of(pipe, *rows(0))
        for o in pipe.optimizers:
            o.param_groups[0].update(lr=0.03, betas=(0.5, 0.6))
        state = pipe.state_dict()
    assert state["optimizer.3.bias.lr:group"].item() == 0.03
    with open_pipeline(parts_of(4)) as pipe:
        pipe.load_state_dict(state)
        assert [(o.param_groups[0]["lr"], o.param_groups[0]["betas"]) for o in pipe.optimizers] == [(0.03, (0.5, 0.6))] * 4
        for key in [key for key in state if key.endswith(":group")]:  # as checkpoints were before
            del state[key]
        pipe.load_state_dict(state)
        assert pipe.optimizers[0].param_groups[0]["lr"] == 0.03


def test_a_checkpoint_of_another_kind_of_optimizer_is_refused(tmp_path):
    settings = {"checkpoint.dir": str(tmp_path)}
    with open_pipeline(mlp(2), settings=settings) as pipe:
        step_of(pipe, *rows(0))
        state = pipe.state_dict()
    assert any(name.endswith(".AdamW:kind") for name in state)
    why = "the optimizer: expected AdamW, as in the checkpoint, got SGD"
    for sgd in {"optimizer": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9)}, {"optimizer": None}:
        of_job = {"train.optimizer": "sgd"} if sgd["optimizer"] is None else {}
        with open_pipeline(mlp(2), **sgd, settings=of_job) as pipe, pytest.raises(rrfp.Error, match=why):
            pipe.load_state_dict(state)
    with pytest.raises(rrfp.Error, match=why):
        open_pipeline(mlp(2), lambda parameters: torch.optim.SGD(parameters, 0.1), settings=settings)
    with open_pipeline(mlp(2), None) as pipe:  # which is an AdamW
        pipe.load_state_dict(state)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_checkpoint_holds_what_a_step_or_save_has_left(tmp_path, parts):
    """And not what the program makes of it next."""
    settings = {"checkpoint.dir": str(tmp_path), "checkpoint.every": 1, "checkpoint.keep": 9}

    def whole(pipe):
        return [p.detach().clone() for part in pipe.stages.values() for p in part.parameters()]

    def swap(pipe):
        for part in pipe.stages.values():
            for p in part.parameters():
                kept = p.detach().clone()
                with torch.no_grad():
                    p.zero_()
                    time.sleep(0.001)
                    p.copy_(kept)
        for o in pipe.optimizers:
            o.param_groups[0]["lr"] = 0.5

    big = lambda i: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Linear(16, 2048), torch.nn.Linear(2048, 16))
    make = lambda: [big(i) for i in range(parts)]
    with open_pipeline(make(), settings=settings) as pipe:
        for step in range(3):
            step_of(pipe, *rows(step))
            left = whole(pipe)
            swap(pipe)
            for o in pipe.optimizers:
                o.param_groups[0]["lr"] = 0.25
            if step == 2:
                pipe.close()
    with open_pipeline(make(), settings=settings) as pipe:
        step = pipe.steps
        if step == 3:
            assert all(torch.equal(a, b) for a, b in zip(whole(pipe), left))
        assert [o.param_groups[0]["lr"] for o in pipe.optimizers] == [0.25 if step > 1 else 1e-2] * parts
        step_of(pipe, *rows(step))
        for o in pipe.optimizers:
            o.param_groups[0]["lr"] = 0.125
        pipe.save()  # again, because the state is another one
        swap(pipe)
        for o in pipe.optimizers:
            o.param_groups[0]["lr"] = 0.25
    with open_pipeline(make(), settings=settings) as pipe:
        assert pipe.steps == step + 1
        assert [o.param_groups[0]["lr"] for o in pipe.optimizers] == [0.125] * parts


def test_weights_alone_leave_the_optimizers_as_they_are():
    with open_pipeline(mlp(2)) as pipe:
        step_of(pipe, *rows(0))
        state = pipe.state_dict()
        weights = {name: value + 1 for name, value in state.items() if not name.startswith("optimizer.")}
        pipe.load_state_dict(weights)
        after = pipe.state_dict()
        assert all(torch.equal(after[name], (state | weights)[name]) for name in state)


def test_betas_that_are_tensors_stay_tensors():
    def optimizer(parameters):
        return torch.optim.AdamW(parameters, torch.tensor(1e-2), betas=(torch.tensor(0.9), torch.tensor(0.95)), foreach=False)

    plain = PlainLoop(mlp(2), optimizer)
    with open_pipeline(mlp(2), optimizer) as pipe:
        step_of(pipe, *rows(0))
        state = pipe.state_dict()
    plain.step(*rows(0))
    parts = mlp(2)
    with open_pipeline(parts, optimizer) as pipe:
        pipe.load_state_dict(state)
        for step in range(1, 4):
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
    assert equal(parts, plain.parts)


def test_an_optimizer_whose_state_cannot_be_saved_says_so(tmp_path):
    class Odd(torch.optim.SGD):
        def step(self):
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["history"] = ["a list"]

    settings = {"checkpoint.dir": str(tmp_path)}
    pipe = open_pipeline(mlp(2), lambda params: Odd(params, 0.1), settings=settings)
    step_of(pipe, *rows(0))
    with pytest.raises(rrfp.Error, match="the state 'history' of the optimizer: expected a tensor or a number"):
        pipe.save()
        pipe.finish()


class Counting(torch.optim.SGD):
    """Keeps a state that is of no parameter, as torch allows."""

    def step(self):
        super().step()
        self.state["all"] = {"steps": 1}


class Masters:
    """An AdamW over float32 copies of the parameters."""

    def __init__(self, params):
        self.params = list(params)
        self.inner = torch.optim.AdamW([p.detach().clone() for p in self.params], 0.1)
        self.state, self.param_groups = self.inner.state, self.inner.param_groups

    def step(self):
        for p, master in zip(self.params, self.param_groups[0]["params"]):
            master.grad = p.grad
        self.inner.step()
        for p, master in zip(self.params, self.param_groups[0]["params"]):
            p.data.copy_(master)


class Alone:
    """With a state_dict() alone, unlike those of torch.optim."""

    def __init__(self, params):
        self.params = list(params)

    def step(self):
        for p in self.params:
            p.data.sub_(p.grad, alpha=0.1)

    def state_dict(self):
        return {}

    load_state_dict = None


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (Alone, "Alone: expected its state by parameter in `state`, got none"),
        (lambda params: Counting(params, 0.1), "Counting: expected one by parameter, got the key 'all'"),
        (Masters, "expected one of the parameters of a part, got that of another tensor"),
    ],
)
def test_a_state_that_no_parameter_has_is_not_left_out(tmp_path, make, what):
    pipe = open_pipeline(mlp(2), make, settings={"checkpoint.dir": str(tmp_path)})
    step_of(pipe, *rows(0))
    with pytest.raises(rrfp.Error, match=f"the optimizer.*{what}.*; save its state_dict.. yourself"):
        pipe.state_dict()
    with pytest.raises(rrfp.Error, match=what):
        pipe.save()
        pipe.finish()


def test_the_state_of_a_parameter_that_joins_the_optimizer_later_waits_for_it(tmp_path):
    def train(folder, upto):
        parts = mlp(2)
        settings = {"checkpoint.dir": str(folder)}
        with open_pipeline(parts, lambda params: torch.optim.AdamW(params[:1], 1e-2), settings=settings) as pipe:
            assert any("exp_avg" in name for name in pipe.state_dict()) == (pipe.steps > 0)
            for optimizer, part in zip(pipe.optimizers, parts):
                optimizer.add_param_group({"params": list(part.parameters())[1:], "lr": 0.05})
            for step in range(pipe.steps, upto):
                step_of(pipe, *rows(step))
        return parts

    plain = train(tmp_path / "plain", 4)
    train(tmp_path / "resumed", 2)
    pipe = open_pipeline(mlp(2), lambda params: torch.optim.AdamW(params[:1], 1e-2), settings={"checkpoint.dir": str(tmp_path / "resumed")})
    pipe.close()  # what waits stays in the checkpoint
    assert equal(train(tmp_path / "resumed", 4), plain)


def test_a_state_of_another_shape_is_refused():
    with open_pipeline(mlp(2)) as pipe:
        step_of(pipe, *rows(0))
        state = pipe.state_dict()
        name = next(name for name in state if name.endswith("weight.exp_avg"))
        with pytest.raises(rrfp.Error, match=r"the state 'exp_avg' of the optimizer: expected .* \[16, 16\], got .* \[3\]"):
            pipe.load_state_dict({**state, name: torch.zeros(3)})
        step_of(pipe, *rows(1))


def test_a_state_that_cannot_be_copied_says_so_at_once(tmp_path):
    class Blocked(torch.Tensor):
        """Like the quantized states of 8-bit optimizers: no memory of its own."""

        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise NotImplementedError("not copied")

    class Blocking(torch.optim.SGD):
        def step(self):
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["average"] = Blocked(p.detach())

    settings = {"checkpoint.dir": str(tmp_path), "run.hang_timeout_s": 100}
    pipe = open_pipeline(mlp(2), lambda params: Blocking(params, 0.1), settings=settings)
    step_of(pipe, *rows(0))
    with pytest.raises(rrfp.Error, match="the state 'average' of the optimizer: expected a tensor.* got Blocked"):
        pipe.state_dict()
    with pytest.raises(rrfp.Error, match="the state 'average' of the optimizer: .*got Blocked"):
        pipe.save()
        pipe.finish()


def test_the_state_moves_to_another_pipeline():
    plain = PlainLoop(mlp(2))
    with open_pipeline(mlp(2)) as pipe:
        for step in range(2):
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
        state = pipe.state_dict()
        step_of(pipe, *rows(8))  # `state` is a copy
    parts = mlp(2)
    with open_pipeline(parts) as pipe:
        pipe.load_state_dict(state)
        for step in range(2, 4):
            assert step_of(pipe, *rows(step)) == plain.step(*rows(step))
        name = "0.0.0.weight"
        with pytest.raises(rrfp.Error, match=name):
            pipe.load_state_dict({k: v for k, v in state.items() if k != name})
        with pytest.raises(rrfp.Error, match=name):
            pipe.load_state_dict({**state, name: torch.zeros(3)})
    assert equal(parts, plain.parts)


def test_progress_shows_loss_time_and_bubble():
    shown = io.StringIO()
    with open_pipeline(mlp(2)) as pipe:
        for x, y in pipe.progress([rows(step) for step in range(3)], file=shown, mininterval=0):
            pipe.step(x, target=y)
    assert "3/3" in shown.getvalue()
    for text in ("loss=", "ms=", "bubble="):
        assert text in shown.getvalue()


EMULATED = {"device.kind": "emulated", "cost.forward_ms": 1, "cost.backward_ms": 1, "cost.weight_ms": 1}


def test_a_policy_of_one_s_own_runs_on_emulated_devices_without_a_model():
    asked = set()

    def backward_first(stage, n_stages, n_microbatches):
        asked.add((stage, n_stages, n_microbatches))
        microbatches = range(n_microbatches)
        return [f"BW{mb}" for mb in microbatches] + [f"F{mb}" for mb in microbatches]

    with rrfp.Pipeline(n_stages=3, n_microbatches=N, policy=backward_first, settings=EMULATED, trace=True) as pipe:
        for step in (1, 2):
            assert pipe.step() is None
            assert pipe.last.step == step
        assert pipe.eval() is None
        assert pipe.last.ms >= 3 * N  # a stage works for so long
        assert 0 < pipe.last.bubble < 1
        assert pipe.last.loss is None and pipe.last.losses == []
        assert pipe.state_dict() == {}
        assert "<svg" in pipe.report(2).svg
    assert asked == {(stage, 3, N) for stage in range(3)}


def test_emulated_devices_refuse_what_they_cannot_compute():
    part = torch.nn.Linear(2, 2)
    for wrong in ({"stages": [part]}, {"loss_fn": loss_fn}, {"optimizer": adam}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(ValueError, match=f"^{name}: expected None with emulated devices, .*, got {type(value).__name__}"):
            rrfp.Pipeline(n_stages=2, settings=EMULATED, **wrong)
    with pytest.raises(TypeError, match="^stages: expected a module, a list of modules or a function, got None"):
        rrfp.Pipeline(loss_fn=loss_fn)
    with rrfp.Pipeline(n_stages=2, n_microbatches=2, settings=EMULATED) as pipe:
        with pytest.raises(ValueError, match=r"^step\(\): expected no arguments with emulated devices"):
            pipe.step(torch.ones(2, 2))
        pipe.step()


def test_a_policy_in_a_shared_library_is_refused_with_the_reason():
    with pytest.raises(rrfp.Error, match="^policy: .*none.so: cannot be loaded as a library: "):
        rrfp.Pipeline([torch.nn.Linear(2, 2)], loss_fn, policy="lib:/none/none.so")


def test_the_states_of_parameters_that_were_added_and_removed_have_their_names():
    parts = [torch.nn.Linear(16, 16) for _ in range(2)]
    with rrfp.Pipeline(parts, torch.nn.functional.mse_loss, n_microbatches=2, optimizer=adam) as pipe:
        x, y = rows(1)
        pipe.step(x, target=y)
        extra = torch.nn.Parameter(torch.zeros(16))
        others = dict(parts[0]._parameters)
        parts[0]._parameters.clear()
        parts[0].register_parameter("extra", extra)  # before all others
        parts[0]._parameters.update(others)
        pipe.optimizers[0].add_param_group({"params": [extra]})
        pipe.step(x, target=y)
        states = {id(p): state for o in pipe.optimizers for p, state in o.state.items()}
        saved = pipe.state_dict()
        for i, part in enumerate(parts):
            for name, p in part.named_parameters():
                if id(p) in states:
                    assert torch.equal(saved[f"optimizer.{i}.{name}.exp_avg"], states[id(p)]["exp_avg"])
        pipe.load_state_dict(saved)
        first = next(name for name, _ in parts[1].named_parameters())
        del parts[1]._parameters[first]
        assert not any(name.startswith(f"optimizer.1.{first}.") for name in pipe.state_dict())
