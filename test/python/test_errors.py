"""What a program gets when something fails."""

import copy
import gc
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import rrfp
import torch
from models import adam, mlp, rows

loss_fn = torch.nn.functional.mse_loss


class Failing(torch.nn.Module):
    def forward(self, x):
        raise LookupError("no such row")


class FailingBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ArithmeticError("a bad gradient")


def step(parts, loss_fn=loss_fn, **options):
    pipe = rrfp.Pipeline(parts, loss_fn, n_microbatches=6, **options)
    x, y = rows(1)
    try:
        pipe.step(x, target=y)
    finally:
        pipe.close()


def test_an_exception_of_a_part_is_the_cause_and_names_stage_and_task():
    with pytest.raises(rrfp.Error, match=r"^stage 1, F\d of step 1: LookupError: no such row") as raised:
        step([torch.nn.Linear(16, 16), Failing()])
    assert isinstance(raised.value.__cause__, LookupError)
    assert raised.value.__cause__.__traceback__ is not None
    copy = pickle.loads(pickle.dumps(raised.value))
    assert str(copy) == str(raised.value) and copy.kind == raised.value.kind


def test_an_exception_without_a_text_is_named_by_its_class():
    class Mute(Exception):
        def __str__(self):
            raise ValueError("no text")

    class Raising(torch.nn.Linear):
        def forward(self, x):
            raise Mute

    with pytest.raises(rrfp.Error, match=r"^stage 0, F0 of step 1: Mute$"):
        step([Raising(16, 16), torch.nn.Linear(16, 16)])


def test_a_part_that_changes_its_input_in_place_is_told_so():
    first, second = mlp(2)
    with pytest.raises(rrfp.Error, match="^stage 1, F0 of step 1: RuntimeError: forward changes its input in place"):
        step([first, torch.nn.Sequential(torch.nn.ReLU(inplace=True), second)])


def test_an_exception_in_backward_names_the_task():
    class Part(torch.nn.Module):
        def forward(self, x):
            return FailingBackward.apply(x)

    with pytest.raises(rrfp.Error, match=r"^stage 1, B\d of step 1: .*a bad gradient"):
        step([torch.nn.Linear(16, 16), Part()])


@pytest.mark.parametrize("fails_in_step", [False, True])
def test_an_exception_of_a_policy_is_the_cause(fails_in_step):
    fails = not fails_in_step

    def policy(stage, n_stages, n_microbatches):
        if fails:
            raise LookupError("no rank")
        return [f"{kind}{mb}" for kind in ("F", "BW") for mb in range(n_microbatches)]

    with pytest.raises(rrfp.Error, match="^policy: LookupError: no rank$") as raised:
        pipe = rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, policy=policy, optimizer=adam)
        fails = True
        x, y = rows(1)
        pipe.step(x, target=y)
    assert isinstance(raised.value.__cause__, LookupError)
    assert raised.value.__cause__.__traceback__ is not None


def test_a_loss_that_trains_nothing_is_named():
    def detached_loss(output, target):
        return loss_fn(output.detach(), target)

    with pytest.raises(rrfp.Error, match="loss_fn '.*detached_loss': expected a loss that depends on a parameter .* any of the 6 m"):
        step(mlp(2), detached_loss, optimizer=adam)

    def of_some(output, target):  # Some microbatches may have nothing to learn.
        return loss_fn(output, target) if target.sum() > 0 else torch.zeros(())

    step(mlp(2), of_some, optimizer=adam)
    with rrfp.Pipeline(mlp(2), detached_loss, n_microbatches=6, optimizer=adam) as pipe:
        pipe.eval(*rows(1)[:1], target=rows(1)[1])


@pytest.mark.parametrize("count", [2.5, torch.tensor(0.5)])
def test_a_count_that_is_no_whole_number_is_refused(count):
    with pytest.raises(ValueError, match=f"^count: expected a whole number of loss terms, got {float(count)}"):
        step(mlp(2), optimizer=adam, count=lambda target: count)
    step(mlp(2), optimizer=adam, count=lambda target: torch.tensor(float(len(target))))


def test_exceptions_of_the_loss_the_optimizer_and_the_factory():
    def no_loss(output, target):
        raise KeyError("target")

    with pytest.raises(rrfp.Error, match=r"^stage 1, F\d of step 1: KeyError"):
        step(mlp(2), no_loss)
    with pytest.raises(rrfp.Error, match="expected a scalar tensor, got torch.float32"):
        step(mlp(2), lambda output, target: output)
    with pytest.raises(rrfp.Error, match="ValueError: no learning rate"):

        def no_optimizer(parameters):
            raise ValueError("no learning rate")

        step(mlp(2), optimizer=no_optimizer)
    with pytest.raises(rrfp.Error, match="^stage 0 chunk 0: TypeError: stages: expected a torch.nn.Module, got int"):
        step(lambda index, count: 3)
    with pytest.raises(rrfp.Error, match="^optimizer: TypeError: expected the function to return .* got int"):
        step(mlp(2), optimizer=lambda parameters: 3)


def test_wrong_arguments_are_refused_and_the_pipeline_goes_on():
    pipe = rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, optimizer=adam)
    x, y = rows(1)
    with pytest.raises(ValueError, match="argument: expected at least 6 rows, one per microbatch, got 4"):
        pipe.step(x[:4], target=y[:4])
    with pytest.raises(ValueError, match="target: expected one in the process of the last part"):
        pipe.step(x)
    with pytest.raises(ValueError, match="expected arguments in the process of the first part"):
        pipe.step(target=y)
    with pytest.raises(TypeError, match="no part has a parameter named scale"):
        pipe.step(x, target=y, scale=2)
    pipe.step(x, target=y)
    assert pipe.steps == 1
    pipe.finish()
    with pytest.raises(rrfp.Error, match="the pipeline is closed"):
        pipe.step(x, target=y)


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"stages": 3}, "stages: expected a module, a list of modules or a function, got int"),
        ({"n_stages": "2"}, "n_stages: expected an integer >= 1, got '2'"),
        ({"n_stages": -1}, "n_stages: expected an integer >= 1, got -1"),
        ({"n_microbatches": "4"}, "n_microbatches: expected an integer, got str"),
        ({"loss_fn": "mse"}, "loss_fn: expected a function, got str"),
        ({"count": 5}, "count: expected a function, got int"),
        ({"on_note": 5}, "on_note: expected a function, got int"),
        ({"autocast": torch.float64}, "autocast: expected torch.bfloat16, torch.float16 or None, got torch.float64"),
        ({"autocast": "bf16"}, "autocast: expected torch.bfloat16, torch.float16 or None, got 'bf16'"),
        ({"trace": "x"}, "trace: expected True or False, got str"),
        ({"policy": b"bf"}, "policy: expected a number or a text, got bytes"),
        ({"slots": torch.tensor(2)}, "slots: expected a number or a text, got Tensor"),
        ({"seed": 2**70}, "seed: expected a number or a text, got 1180591620717411303424"),
        ({"args_chunk_spec": 5}, "args_chunk_spec: expected a tuple with a spec for each argument, got int"),
        ({"kwargs_chunk_spec": "x"}, "kwargs_chunk_spec: expected a dict with a spec for each argument, got str"),
        (
            {"output_merge_spec": 5},
            "output_merge_spec: expected TensorChunkSpec(dimension), a reducer or None for each output, got int",
        ),
        ({"settings": 5}, "settings: expected a dict with keys of a job, got int"),
        (
            {"settings": {"train.lr": torch.tensor(3)}},
            'settings["train.lr"]: expected a number, a text, True or False, or a list of them, got Tensor',
        ),
        (
            {"settings": {"train.lr": float("nan")}},
            'settings["train.lr"]: expected a number, a text, True or False, or a list of them, got nan',
        ),
        ({"settings": {"pipeline.replicas": 0}}, 'settings["pipeline.replicas"]: expected an integer >= 1, got 0'),
        ({"settings": {"pipeline.chunks": "x"}}, 'settings["pipeline.chunks"]: expected an integer >= 1, got x'),
    ],
)
def test_wrong_arguments_are_named(wrong, expected):
    with pytest.raises((TypeError, ValueError)) as raised:
        rrfp.Pipeline(**{"stages": lambda index, count: mlp(2)[index], "loss_fn": loss_fn, **wrong})
    assert str(raised.value) == expected


def test_a_setting_comes_before_the_argument_that_it_names():
    with rrfp.Pipeline(mlp(2), loss_fn, optimizer=adam, settings={"pipeline.microbatches": 3}) as pipe:
        x, y = rows(1)
        pipe.step(x, target=y)
        assert len(pipe.last.losses) == 3
        with pytest.raises(TypeError, match=r"^load_state_dict\(\): expected a dict of tensors, got int$"):
            pipe.load_state_dict(5)
        with pytest.raises(TypeError, match=r"^load_state_dict\(\): 'a': expected a tensor, got int$"):
            pipe.load_state_dict({"a": 5})
        with pytest.raises(TypeError, match=r"^load_state_dict\(\): a name: expected a text, got int$"):
            pipe.load_state_dict({1: x})
        for flag in ("no", torch.ones(3)):
            with pytest.raises(TypeError, match=f"^update: expected True or False, got {type(flag).__name__}$"):
                pipe.step(x, target=y, update=flag)
        with pytest.raises(TypeError, match=r"^hang_report\(\): expected a text, got int$"):
            pipe.hang_report(3)
        with pytest.raises(TypeError, match="^arg_mbs: expected a list with one for each microbatch, got int$"):
            pipe.step_microbatches(5)
        with pytest.raises(TypeError, match=r"^kwarg_mbs\[0\]: expected a dict, got NoneType$"):
            pipe.step_microbatches([x], [None], [y])
        with pytest.raises(TypeError, match="^a Pipeline cannot be copied or pickled"):
            copy.copy(pipe)
        with pytest.raises(TypeError, match="^costs: expected a list with one for each microbatch, got str$"):
            pipe.step_microbatches([x], target_mbs=[y], costs="a")
        with pytest.raises(TypeError, match="^costs: expected a list of numbers: "):
            pipe.step_microbatches([x], target_mbs=[y], costs=[10**400])
        with pytest.raises(TypeError, match="^losses: expected a list, got int$"):
            pipe.step(x, target=y, losses=5)
        assert pipe.steps == 1


class Placed(torch.nn.Parameter):
    """Like a DTensor."""

    def to_local(self):
        return self.data


class Distributed(torch.nn.Linear):
    def __init__(self):
        super().__init__(16, 16)
        self.weight = Placed(self.weight.data)


def test_modules_and_optimizers_that_a_pipeline_cannot_have_are_refused():
    one = torch.optim.SGD(mlp(1)[0].parameters(), 0.1)
    shared = torch.nn.BatchNorm1d(16, affine=False)
    parts = [torch.nn.Sequential(torch.nn.Linear(16, 16), shared) for _ in range(2)]
    for wrong, told in [
        ({"stages": parts}, "stages: parts 0 and 1 share the statistics '1.running_mean'"),
        ({"stages": [torch.nn.LazyLinear(16), torch.nn.Linear(16, 16)]}, "expected a lazy module to have run a forward"),
        ({"stages": [torch.jit.script(torch.nn.Linear(16, 16)), torch.nn.Linear(16, 16)]}, "got one of torch.jit"),
        ({"optimizer": torch.optim.LBFGS}, "optimizer: TypeError: expected an optimizer whose step.. needs no closure"),
        ({"optimizer": lambda params: one}, "optimizer: ValueError: expected an optimizer of its own for each stage"),
        ({"stages": [Distributed(), torch.nn.Linear(16, 16)]}, "expected plain tensors, got a Placed for the parameter 'weight'"),
    ]:
        with pytest.raises((rrfp.Error, ValueError), match=told):
            step(**{"parts": wrong.pop("stages", mlp(2)), "optimizer": adam, **wrong})


def test_a_parameter_of_the_loss_is_refused():
    scale = torch.ones((), requires_grad=True)
    with pytest.raises(rrfp.Error, match="^stage 1, F0 of step 1: RuntimeError: loss_fn uses a leaf that is not trained here"):
        step(mlp(2), lambda output, target: scale * loss_fn(output, target), optimizer=adam)


def test_an_error_at_the_end_of_a_with_block_is_raised(tmp_path):
    """Also one of the last save, which no call before it has had."""
    settings = {"checkpoint.dir": str(tmp_path)}
    with pytest.raises(rrfp.Error, match="checkpoint of step 1 not saved"):
        with rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, optimizer=adam, settings=settings) as pipe:
            x, y = rows(1)
            pipe.step(x, target=y)
            shutil.rmtree(tmp_path)
            tmp_path.write_text("")


@pytest.mark.parametrize("end", ["finish", "close"])
def test_a_with_block_may_end_its_pipeline_itself(end):
    with rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, optimizer=adam) as pipe:
        x, y = rows(1)
        pipe.step(x, target=y)
        getattr(pipe, end)()


def test_a_save_that_the_end_cuts_off_is_told(tmp_path):
    notes = []
    settings = {"checkpoint.dir": str(tmp_path)}
    pipe = rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, optimizer=adam, settings=settings, on_note=notes.append)
    x, y = rows(1)
    pipe.step(x, target=y)
    pipe.save()
    pipe.close()
    saved = [folder.name for folder in tmp_path.iterdir() if folder.name.startswith("step-")]
    told = [note for note in notes if "checkpoint of step 1 not saved: the run ended before it was written" in note]
    assert (saved, told) in ((["step-00000001"], []), ([], told[:1])), (saved, notes)
    assert saved or told, notes


def test_sparse_gradients_are_refused_with_replicas():
    parts = lambda index, count: torch.nn.Linear(4, 3) if index else torch.nn.Embedding(10, 4, sparse=True)
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.1)
    two = {"n_stages": 2, "optimizer": sgd, "settings": {"pipeline.replicas": 2}}
    with rrfp.Pipeline(parts, torch.nn.functional.cross_entropy, 2, **two) as pipe:
        with pytest.raises(rrfp.Error, match="expected dense gradients with replicas .*, got torch.sparse_coo"):
            pipe.step(torch.arange(8), target=torch.zeros(8, dtype=torch.int64))


def test_a_program_whose_forwards_leave_graphs_behind_ends_in_order():
    """Of a thread of the pipeline: the last reference to a graph goes with the thread."""
    program = (
        "import threading, rrfp, torch\n"
        "local = threading.local()\n"
        "class Part(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        local.last = y = torch.tanh(super().forward(x))\n"
        "        y.retain_grad()\n"
        "        return y * 2\n"
        "x = torch.randn(8, 16)\n"
        "parts = [Part(16, 16), Part(16, 16)]\n"
        "with rrfp.Pipeline(parts, torch.nn.functional.mse_loss, n_microbatches=2) as pipe:\n"
        "    pipe.step(x, target=x)\n"
        "print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == "ended\n", done


def test_a_forward_that_changes_what_it_has_passed_on_is_refused():
    class Static(torch.nn.Linear):
        out = None

        def forward(self, x):
            y = super().forward(x)
            self.out = torch.empty_like(y) if self.out is None else self.out.detach()
            self.out.zero_()
            return self.out.add_(y)

    with pytest.raises(rrfp.Error, match="stage 0, F1 of step 1: .*changes in place what it has returned for another"):
        step([Static(16, 16), torch.nn.Linear(16, 16)], optimizer=adam)
    pipe = rrfp.Pipeline([Static(16, 16), torch.nn.Linear(16, 16)], loss_fn, n_microbatches=6, optimizer=adam)
    x, y = rows(1)
    with pytest.raises(rrfp.Error, match="stage 0, F1 of an evaluation: .*changes in place what it has returned"):
        pipe.eval(x, target=y)


class WithTie(torch.nn.Linear):
    def __init__(self, name, size=16, is_trained=True):
        super().__init__(16, size)
        self.tied_parameter = name
        self.weight.requires_grad_(is_trained)


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (WithTie("wight"), WithTie("weight"), "expected the name of a parameter of the part, got 'wight'"),
        (WithTie(""), WithTie("weight"), r"expected two of one shape .*, got part 1: torch.float32 \[16, 16\]$"),
        (WithTie("weight"), WithTie("weight", 8), r"expected two of one shape .*16, 16\], part 1: torch.float32 \[8, 16\]$"),
        (WithTie("weight"), WithTie("weight", 16, False), r"expected two of one shape .*16\], part 1: .*16\], frozen$"),
    ],
)
def test_a_wrong_tie_is_refused(first, last, expected):
    with pytest.raises(rrfp.Error, match=f"tied_parameter: {expected}") as raised:
        step([first, last], optimizer=adam)
    assert raised.value.kind == "bad_input"


def test_tied_parameters_inside_a_part_that_names_none():
    class Tied(torch.nn.Linear):
        tied_parameter = "weight"

    class Around(torch.nn.Module):
        def __init__(self, *inner):
            super().__init__()
            self.inner = torch.nn.ModuleList(inner)

        def forward(self, x):
            for one in self.inner:
                x = one(x)
            return x

    first, last = (Around(torch.nn.Linear(16, 16), Tied(16, 16)) for _ in range(2))
    last.inner[1].weight.data.copy_(first.inner[1].weight.data)
    with rrfp.Pipeline([first, last], torch.nn.functional.mse_loss, n_microbatches=4, optimizer=adam) as pipe:
        for step in range(2):
            x, y = rows(step)
            pipe.step(x, target=y)
    assert torch.equal(first.inner[1].weight, last.inner[1].weight)
    several = Around(Tied(16, 16), Tied(16, 16))
    with pytest.raises(rrfp.Error, match="tied_parameter: expected one in a part, got those of inner.0.weight and inner.1"):
        rrfp.Pipeline([several, last], torch.nn.functional.mse_loss, n_microbatches=4, optimizer=adam)
    for part in several.inner:
        part.requires_grad_(False)


def test_sparse_gradients_of_tied_parameters_are_refused():
    class Words(torch.nn.Embedding):
        tied_parameter = "weight"

    class Head(torch.nn.Linear):
        tied_parameter = "weight"

    words, head = Words(5, 16, sparse=True), Head(16, 5, bias=False)
    head.weight.data.copy_(words.weight.data)
    ids = torch.arange(24) % 5
    with pytest.raises(rrfp.Error, match="tied_parameter: expected a dense gradient, got one of layout torch.sparse_coo"):
        with rrfp.Pipeline([words, head], torch.nn.functional.cross_entropy, n_microbatches=4, optimizer=adam) as pipe:
            pipe.step(ids, target=ids)


def test_copies_of_a_tied_parameter_with_other_values_are_refused():
    parts = [WithTie("weight"), WithTie("weight")]
    with pytest.raises(rrfp.Error, match="tied_parameter: expected two copies with the same values, got different ones"):
        step(parts, optimizer=adam)
    parts[1].weight.data.copy_(parts[0].weight.data)
    step(parts, optimizer=adam)


def test_a_state_that_the_optimizer_refuses_changes_nothing():
    x, y = rows(1)
    without_steps = lambda part: {n: v for n, v in state.items() if not n.startswith(f"optimizer.{part}.") or not n.endswith("step")}
    with rrfp.Pipeline(mlp(2), loss_fn, optimizer=adam) as pipe:
        pipe.step(x, target=y)
        state = pipe.state_dict()
        pipe.step(x, target=y)
        before = pipe.state_dict()
        moment = next(n for n in state if n.startswith("optimizer.1.") and n.endswith("exp_avg"))
        for wrong, why in [
            (without_steps(0), "the checkpoint lacks the state 'step' of the optimizer"),
            (without_steps(1), "the checkpoint lacks the state 'step' of the optimizer"),
            (state | {moment: state[moment].double()}, "the state 'exp_avg' of the optimizer: expected torch.float32 .*, got torch.float64"),
            (state | {moment: state[moment].to("meta")}, "'optimizer.1.*exp_avg': expected a tensor with values .*, got one on the device meta"),
        ]:
            with pytest.raises(rrfp.Error, match=why):
                pipe.load_state_dict(wrong)
            after = pipe.state_dict()
            assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
        name = next(n for n in state if n.startswith("1."))
        with pytest.raises(rrfp.Error, match=f"'{name}': expected a tensor with values .*, got one on the device meta"):
            pipe.load_state_dict(state | {name: state[name].to("meta")})
        pipe.load_state_dict(state)
        pipe.step(x, target=y)
        after = pipe.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
    with rrfp.Pipeline(mlp(2), loss_fn, optimizer=adam) as pipe:
        with pytest.raises(rrfp.Error, match="^the optimizer AdamW refuses its state: KeyError: 'step'"):
            pipe.load_state_dict(without_steps(1))


def test_wrong_options_name_the_key():
    with pytest.raises(rrfp.Error, match="^policy: expected one of .*bfw.* got \"bfx\", did you mean bf") as raised:
        rrfp.Pipeline(mlp(2), loss_fn, policy="bfx")
    assert raised.value.kind == "bad_input" and raised.value.exit_code == 2
    with pytest.raises(rrfp.Error, match="^n_microbatches: expected an integer >= 1, got 0$"):
        rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=0)
    with pytest.raises(rrfp.Error, match=r'^settings\["dispatch.slot"\]: unknown key, did you mean slots'):
        rrfp.Pipeline(mlp(2), loss_fn, settings={"dispatch.slot": 3})
    with pytest.raises(TypeError, match="^optimizer: expected a function of the parameters of a part.* got Adam"):
        rrfp.Pipeline(mlp(2), loss_fn, optimizer=torch.optim.Adam(mlp(1)[0].parameters()))
    with pytest.raises(TypeError, match=r"^stages\[1\]: expected a torch.nn.Module, got int"):
        rrfp.Pipeline([mlp(1)[0], 3], loss_fn)
    shared = mlp(1)[0]
    with pytest.raises(ValueError, match="^stages: parts 0 and 1 share the parameter '0.0.weight'"):
        rrfp.Pipeline([shared, shared], loss_fn)
    with pytest.raises(rrfp.Error, match="pipeline.tp: expected one rank of one stage in each process"):
        rrfp.Pipeline(
            lambda index, count, group: mlp(2)[index], loss_fn, n_stages=2, settings={"pipeline.tp": 2}
        )
    with pytest.raises(ValueError, match="n_stages: expected 2"):
        rrfp.Pipeline(mlp(2), loss_fn, n_stages=3)
    with pytest.raises(rrfp.Error, match="stages: expected 2 parts, got 3"):
        rrfp.Pipeline([*mlp(2), *mlp(1)], loss_fn, settings={"pipeline.chunks": 2})
    with pytest.raises(rrfp.Error, match="loss_fn: expected a function"):
        rrfp.Pipeline(mlp(2))


def test_a_pipeline_that_nobody_holds_ends_and_leaves_nothing_behind():
    parts = mlp(2)
    pipe = rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam)
    x, y = rows(1)
    pipe.step(x, target=y)
    part, whole = weakref.ref(parts[0]), weakref.ref(pipe)
    del parts, pipe
    gc.collect()
    assert whole() is None and part() is None


def test_a_program_may_end_without_closing_its_pipeline():
    program = """
import rrfp, torch
pipe = rrfp.Pipeline([torch.nn.Linear(4, 4)] , torch.nn.functional.mse_loss, n_microbatches=2)
pipe.step(torch.ones(2, 4), target=torch.ones(2, 4))
cycle = [pipe]
cycle.append(cycle)
print("end")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_ctrl_c_ends_a_step():
    class Slow(torch.nn.Module):
        def forward(self, x):
            time.sleep(0.05)
            return x

    pipe = rrfp.Pipeline([Slow(), *mlp(2)], loss_fn, n_microbatches=20)
    x, y = rows(1)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(100):
            pipe.step(x, target=y)
    pipe.close()


def test_ctrl_c_is_not_lost_as_a_pipeline_is_deleted():
    pipe = rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=2)
    pipe.close()
    pipe._end = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        del pipe
        time.sleep(5)


# A soak: RRFP_RUNS=1000 scripts/test -R python_test
RUNS = int(os.environ.get("RRFP_RUNS", "50"))


def test_early_destruction_exceptions_and_interrupts_at_random_points_never_hang():
    torch.manual_seed(1)
    x, y = rows(1)

    class Sometimes(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(16, 16)

        def forward(self, x):
            if torch.rand((), generator=chance) < 0.1:
                raise LookupError("by chance")
            return self.linear(x)

    chance = torch.Generator().manual_seed(11)
    interrupted = 0
    for run in range(RUNS):
        parts = [Sometimes() if run % 2 else torch.nn.Linear(16, 16) for _ in range(3)]
        pipe = rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam)
        try:
            if run % 5 == 4:
                moment = 0.02 * torch.rand((), generator=chance).item()
                threading.Timer(moment, os.kill, (os.getpid(), signal.SIGINT)).start()
                while True:
                    pipe.step(x, target=y)
            for _ in range(run % 3):
                pipe.step(x, target=y)
        except rrfp.Error as e:
            assert isinstance(e.__cause__, LookupError)
            if run % 5 == 4:
                with pytest.raises(KeyboardInterrupt):
                    time.sleep(5)
        except KeyboardInterrupt:
            interrupted += 1
        del pipe
    assert interrupted > 0


class Calling(torch.nn.Module):
    """Calls `function` in its first forward."""

    def __init__(self, function):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.function = function
        self.got = None

    def forward(self, x):
        if self.got is None:
            try:
                self.got = self.function()
            except Exception as e:
                self.got = e
        return self.layer(x)


@pytest.mark.parametrize(
    "call",
    [
        lambda pipe, state: pipe.state_dict(),
        lambda pipe, state: pipe.load_state_dict(state),
        lambda pipe, state: pipe.step(rows(1)[0], target=rows(1)[1]),
        lambda pipe, state: pipe.eval(rows(1)[0], target=rows(1)[1]),
        lambda pipe, state: pipe.save(),
        lambda pipe, state: pipe.finish(),
    ],
    ids=["state_dict", "load_state_dict", "step", "eval", "save", "finish"],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_a_call_while_a_step_runs_is_an_error_and_the_step_goes_on(call, in_thread):
    def function():
        if not in_thread:
            return call(pipe, state)
        failures = []

        def work():
            try:
                call(pipe, state)
            except rrfp.Error as e:
                failures.append(e)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return failures[0]

    part = Calling(function)
    with rrfp.Pipeline([part, *mlp(1)], loss_fn, n_microbatches=6, optimizer=adam) as pipe:
        state = pipe.state_dict()
        x, y = rows(1)
        pipe.step(x, target=y)
        assert isinstance(part.got, rrfp.Error) and "the pipeline is in a step" in str(part.got)
        pipe.step(x, target=y)
        assert pipe.steps == 2


def test_another_pipeline_in_a_forward_or_a_loss_is_refused_at_once():
    x, y = rows(1)
    with rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6, optimizer=adam) as inner:
        calls = [
            lambda: inner.step(x, target=y),
            lambda: inner.state_dict(),
            lambda: inner.save(),
            lambda: inner.finish(),
            lambda: rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=6),
        ]
        for call in calls:
            part = Calling(call)
            begun = time.monotonic()
            with rrfp.Pipeline([part, *mlp(1)], loss_fn, n_microbatches=6, optimizer=adam) as pipe:
                pipe.step(x, target=y)
            assert time.monotonic() - begun < 60
            assert isinstance(part.got, rrfp.Error) and "inside a forward" in str(part.got)
        inner.step(x, target=y)
        with pytest.raises(rrfp.Error, match="inside a forward, a loss or a keyed_generator"):
            step(mlp(2), lambda output, target: inner.step(x, target=y))
        with rrfp.keyed_generator(1, 1, 1, 1), pytest.raises(rrfp.Error, match="inside a forward"):
            inner.step(x, target=y)


@pytest.mark.parametrize("place", ["part", "loss"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_exception_that_ends_a_program_is_raised_itself(kind, place):
    class Raising(torch.nn.Linear):
        def forward(self, x):
            raise kind("enough")

    def raising(output, target):
        raise kind("enough")

    with pytest.raises(kind, match="enough") as raised:
        step([*mlp(1), Raising(16, 16)]) if place == "part" else step(mlp(2), raising)
    assert isinstance(raised.value.__cause__, rrfp.Error)


def handling(function):
    """Raises SystemExit at the first call of `function` in a process, as the handler of a signal may."""

    def look(frame, event, argument):
        if event == "call" and frame.f_code is function.__code__:
            sys.setprofile(None)
            raise SystemExit(7)

    sys.setprofile(look)


@pytest.mark.parametrize("name", ["begin", "run", "losses", "squared_norms", "apply"])
def test_what_a_handler_raises_as_the_runtime_calls_python_ends_the_program(name):
    x, y = rows(1)
    with rrfp.Pipeline(mlp(1), loss_fn, n_microbatches=2, optimizer=adam, settings={"train.clip_norm": 1}) as pipe:
        pipe.step(x, target=y)
        handling(getattr(type(pipe._model.ranks[0]), name))
        with pytest.raises(SystemExit) as raised:
            pipe.step(x, target=y)
        assert raised.value.code == 7 and isinstance(raised.value.__cause__, rrfp.Error)


def test_what_a_handler_raises_while_the_state_is_copied_ends_the_program(tmp_path):
    settings = {"checkpoint.dir": str(tmp_path), "checkpoint.every": 2}
    x, y = rows(1)
    with rrfp.Pipeline(mlp(1), loss_fn, n_microbatches=2, optimizer=adam, settings=settings) as pipe:
        snapshot = type(pipe._model.ranks[0]).snapshot
        for call in (lambda: pipe.step(x, target=y), pipe.save):
            pipe.step(x, target=y)
            handling(snapshot)
            with pytest.raises(SystemExit):
                call()
        pipe.step(x, target=y)


def test_a_program_that_ends_after_a_hang_has_its_own_exit_code():
    program = """
import sys, time, torch, rrfp
class Stuck(torch.nn.Linear):
    def forward(self, x):
        for _ in range(6000):
            time.sleep(0.01)
parts, settings = [Stuck(4, 4), torch.nn.Linear(4, 4)], {"run.hang_timeout_s": 1}
pipe = rrfp.Pipeline(parts, torch.nn.functional.mse_loss, 2, settings=settings)
try:
    pipe.step(torch.ones(4, 4), target=torch.ones(4, 4))
except rrfp.Error:
    pipe.close()
    sys.exit(5)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100)
    assert done.returncode == 5, done.stderr


def test_a_report_names_the_update_that_does_not_end():
    class Slow(torch.optim.Adam):
        def step(self, closure=None):
            assert reported.wait(60)
            return super().step(closure)

    reports, reported = [], threading.Event()

    def report(text):
        reports.append(text)
        reported.set()

    x, y = rows(1)
    cause = "stage 0: the update of step 1 has not finished"
    settings = {"run.hang_timeout_s": 1}
    with rrfp.Pipeline(mlp(2), loss_fn, n_microbatches=2, optimizer=Slow, settings=settings, on_report=report) as pipe:
        with pytest.raises(rrfp.Error, match=cause):
            pipe.step(x, target=y)
    assert f"cause: {cause}" in reports[0] and "all tasks done, updates its parameters" in reports[0]


def test_exceptions_of_on_note_and_on_report_are_shown(tmp_path, monkeypatch):
    shown, reported = [], threading.Event()

    def show(unraisable):
        shown.append(unraisable.exc_value)
        reported.set()

    def raising(text):
        raise LookupError(text)

    monkeypatch.setattr(sys, "unraisablehook", show)
    options = {"n_microbatches": 6, "optimizer": adam, "settings": {"checkpoint.dir": str(tmp_path)}}
    x, y = rows(1)
    with rrfp.Pipeline(mlp(2), loss_fn, **options) as pipe:
        pipe.step(x, target=y)
    with rrfp.Pipeline(mlp(2), loss_fn, **options, on_note=raising, on_report=raising) as pipe:
        assert [str(e) for e in shown if "resumes after step 1" in str(e)]
        reported.clear()
        pipe.step(x, target=y)
        pipe.hang_report("a question")
        assert reported.wait(60)
        assert [type(e) for e in shown if "a question" in str(e)] == [LookupError]
    with rrfp.Pipeline(torch.nn.Linear(16, 16).requires_grad_(False), loss_fn, on_note=raising):
        assert [str(e) for e in shown if "no parameter requires a gradient" in str(e)]


def test_a_child_of_fork_ends_by_itself_and_cannot_use_the_pipeline():
    program = """
import os, sys, torch, rrfp
from models import adam, mlp, rows
pipe = rrfp.Pipeline(mlp(2), torch.nn.functional.mse_loss, n_microbatches=6, optimizer=adam)
x, y = rows(1)
pipe.step(x, target=y)
child = os.fork()
if child == 0:
    try:
        pipe.step(x, target=y)
    except rrfp.Error as e:
        assert "belongs to the process that opened it" in str(e), e
        sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pipe.step(x, target=y)
pipe.finish()
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],  # from 3.12 on os.fork() warns
        timeout=200, cwd=os.path.dirname(__file__), capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr


def test_a_child_made_in_a_function_of_the_pipeline_ends():
    program = """
import os, sys, torch, rrfp
from models import mlp, rows
loss_fn = torch.nn.functional.mse_loss
x, y = rows(1)

def exits(value): return lambda pipe: sys.exit(value)
def fails(pipe): raise LookupError("a child")
def steps(pipe): pipe.step(x, target=y)

def run(where, child, expected):
    waiting, ends = [], []
    def fork(place):
        if place != where:
            return
        try:
            waiting.pop()
        except IndexError:
            return
        process = os.fork()
        if process == 0:
            return child(pipe)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
    class Forking(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner
        def forward(self, x):
            fork("forward")
            out = self.inner(x)
            if out.requires_grad:
                out.register_hook(lambda grad: fork("hook"))
            return out
    class Adam(torch.optim.Adam):
        def step(self):
            fork("optimizer")
            return super().step()
    def loss(out, target):
        fork("loss")
        return loss_fn(out, target)
    first, second = mlp(2)
    adam = lambda parameters: Adam(parameters, 1e-2)
    with rrfp.Pipeline([Forking(first), second], loss, n_microbatches=1, optimizer=adam) as pipe:
        pipe.step(x, target=y)  # torch imports modules: a child would wait for the thread that does
        waiting.append(1)
        pipe.step(x, target=y)
    assert ends == [expected], (where, expected, ends)

run("forward", exits(7), 7)
run("forward", exits(None), 0)
run("forward", exits("a reason"), 1)
run("forward", fails, 1)
run("forward", steps, 1)
for where in ("forward", "loss", "hook", "optimizer"):
    run(where, lambda pipe: None, 1)
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        timeout=200, cwd=os.path.dirname(__file__), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    returned = "rrfp.Error: a child of os.fork() has returned into the pipeline: expected os._exit() or sys.exit()"
    last_lines = [line for line in done.stderr.splitlines() if re.match(r"a reason|[\w.]*Error: ", line)]
    assert last_lines == [
        "a reason",
        "LookupError: a child",
        "rrfp.Error: the pipeline is in a step or an evaluation: expected a call before or after it",
        *[returned] * 4,
    ], done.stderr


def test_a_model_of_frozen_parameters_alone_is_not_trained():
    notes = []
    parts = mlp(2)
    for part in parts:
        part.requires_grad_(False)
    x, y = rows(1)
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=6, optimizer=adam, on_note=notes.append) as pipe:
        assert notes == ["no parameter requires a gradient: training changes nothing"]
        with pytest.raises(ValueError, match="expected a parameter that requires a gradient, got none in any part"):
            pipe.step(x, target=y)
        pipe.eval(x, target=y)
        parts[1].requires_grad_(True)
        pipe.step(x, target=y)
        assert pipe.steps == 1


def test_a_failed_step_leaves_the_gradients_to_the_backwards_that_still_run():
    """Without a gradient, the backward of another stage would end in memory that was given back."""
    seen, begun = [], threading.Event()

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, y, weight):
            ctx.weight = weight
            return y.clone()

        @staticmethod
        def backward(ctx, gradient):
            if ctx.weight.grad is not None:  # of the microbatch before
                begun.set()
                time.sleep(0.5)  # The other stage fails meanwhile.
                seen.append(ctx.weight.grad is not None)
            return gradient, None

    class First(torch.nn.Linear):
        def forward(self, x):
            return Slow.apply(super().forward(x), self.weight)

    class FailsInThird(torch.nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                begun.wait(60)
                raise LookupError("no third")
            return super().forward(x)

    settings = {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b"}
    parts = [First(16, 16), FailsInThird(16, 16)]
    x, y = rows(1)
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=4, optimizer=adam, settings=settings) as pipe:
        with pytest.raises(rrfp.Error, match="LookupError: no third"):
            pipe.step(x, target=y)
    assert seen == [True]
    assert all(p.grad is None for part in parts for p in part.parameters())
