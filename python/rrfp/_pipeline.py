"""The pipeline of a Python program."""

import _thread
import contextlib
import dataclasses
import os
import sys
import threading
from collections.abc import Mapping

import torch

from . import _runtime
from ._batches import Batch, check_merge_spec
from ._closing import close_at_exit, why_ended
from ._draws import check_outside
from ._errors import Error
from ._model import Model, parts_of, text_of
from ._rendezvous import AgentStore
from ._settings import called, check_flag, check_settings, described, is_value, with_whole_tasks
from ._settings import text_of as text_of_setting
from ._timeline import Timeline


#: By the key of a job: the argument of Pipeline() that sets it.
_ARGUMENTS = {
    "dispatch.policy": "policy",
    "dispatch.slots": "slots",
    "pipeline.microbatches": "n_microbatches",
    "train.seed": "seed",
}


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The figures of a step or an evaluation; the same on every process."""

    step: int  #: its number, from 1; evaluations are counted apart
    loss: float  #: mean over the microbatches; None on emulated devices, which compute nothing
    losses: list  #: of each microbatch, in order
    gradient_norm: float  #: before clipping; 0 for an evaluation
    is_skipped: bool  #: the gradient was infinite or NaN, so nothing changed ("train.loss_scale")
    lr: float  #: of the optimizer of `settings`; without meaning if `optimizer` was given
    count: int  #: loss terms
    ms: float  #: duration
    bubble: float  #: share of the stages' time without a task
    weight_shares: list  #: by stage, the share of the time of its backwards that went to W


class Pipeline:
    """Trains a model whose parts run as the stages of a pipeline.

    stages: the parts of the model in order, a list of torch.nn.Module. Or one module: the part of this
        process, which torchrun started as one of WORLD_SIZE. Or a function of (index, count) that makes the
        part `index` of `count`; then `n_stages` says how many there are (WORLD_SIZE unless given). A part
        takes what the one before it returned: a tensor, or a tuple or dict of tensors, numbers and None. The
        first one takes the arguments of step(). With settings["pipeline.tp"] the function gets the
        tensor-parallel ranks of the stage as a third argument: `rank`, `size` and `all_reduce(tensor)`.
        None with settings["device.kind"] = "emulated": tasks take the times of the keys "cost" and "jitter"
        and compute nothing, and step() takes no arguments.
    loss_fn: loss_fn(output, target), the mean over a microbatch; with `count` the sum. Only the process of
        the last part uses it.
    n_microbatches: into how many microbatches step() splits its arguments, along their first dimension
        unless `args_chunk_spec` or `kwargs_chunk_spec` say otherwise (as in torch.distributed.pipelining).
        Without them all tensors among the arguments must have as many rows. `output_merge_spec` says how
        step() merges outputs: TensorChunkSpec(dimension), a reducer such as sum_reducer, or None for the
        rule of step(), for all outputs or in their structure.
        With settings["pipeline.replicas"] each replica gets this many microbatches. A step may have a different number.
    policy: the hint that ranks the ready tasks: one of rrfp.policies(), or a function of (stage, n_stages,
        n_microbatches) that returns the names of all tasks of a step, the most urgent first: "F0" and either
        "BW0", or "B0" and "W0" if the backward is to be split. Called before each step.
    slots: how many microbatches may hold activations on a stage: a number, "p", "1f1b" or "auto".
    optimizer: makes the optimizer of the parameters of one stage, for example
        lambda params: torch.optim.AdamW(params, 1e-3). params is a list; params.named() has the names as
        well, for groups. None: that of the section [train] of `settings`.
    count: count(target), the number of loss terms of a microbatch. Losses are divided by the sum of these numbers
        over the microbatches of the step, or of all steps that share one update (update=False).
    seed: of the random numbers that the parts draw.
    settings: keys of a job (docs/job-reference.md), for example
        {"jitter.compute": "lognormal", "run.hang_timeout_s": 30}.
    autocast: torch.bfloat16 or torch.float16, for torch.autocast around each forward and the loss. For
        float16 set "train.loss_scale" (65536 in torch's GradScaler) in `settings`: a step with an infinite
        gradient is skipped and halves the scale.
    trace: whether to record each task, for report() and write_trace().
    on_note: gets each line that is meant for the user; on_report: each hang report. None: stderr. What they
        raise goes to sys.unraisablehook, and the training goes on.

    The result is that of a loop over the microbatches, to the last bit, whatever the order of execution.
    Buffers that forward changes would depend on that order; a stage with such a part (batch norm, rotary
    embeddings that follow the length of the text, or a part with the attribute forwards_in_order = True) runs its
    forwards in the order of the microbatches.

    A process with one part runs its tasks on the thread that calls step(); parts that share a process have threads
    of their own, one thread a stage. One thread calls the pipeline.
    """

    _pipeline = None  # also if __init__ is called with wrong arguments
    _raised = None  # the last error of the runtime
    _has_ended = False  # the program has finished or closed it

    def __init__(
        self,
        stages=None,
        loss_fn=None,
        n_microbatches=8,
        *,
        n_stages=None,
        policy=None,
        slots=None,
        optimizer=None,
        count=None,
        args_chunk_spec=None,
        kwargs_chunk_spec=None,
        output_merge_spec=None,
        seed=1,
        autocast=None,
        settings=None,
        on_note=None,
        on_report=None,
        trace=False,
    ):
        if optimizer is not None and not callable(optimizer):
            raise TypeError(
                "optimizer: expected a function of the parameters of a part, such as "
                f"lambda params: torch.optim.AdamW(params, 1e-3), got {text_of(optimizer)}"
            )
        for name, value in {"loss_fn": loss_fn, "count": count, "on_note": on_note, "on_report": on_report}.items():
            if value is not None and not callable(value):
                raise TypeError(f"{name}: expected a function, got {text_of(value)}")
        _check_kind("args_chunk_spec", args_chunk_spec, "a tuple with a spec for each argument", (tuple, list, type(None)))
        _check_kind("kwargs_chunk_spec", kwargs_chunk_spec, "a dict with a spec for each argument", (dict, type(None)))
        check_flag("trace", trace)
        if autocast not in (None, torch.bfloat16, torch.float16):
            raise TypeError(f"autocast: expected torch.bfloat16, torch.float16 or None, got {autocast!r}")
        self._count = count
        self._chunk_specs = (args_chunk_spec, kwargs_chunk_spec)
        self._output_merge_spec = output_merge_spec
        check_merge_spec(output_merge_spec)
        check_settings(settings)
        settings = dict(settings or {})
        replicas, ranks = (_number(settings, f"pipeline.{key}") for key in ("replicas", "tp"))
        if "pipeline.microbatches" in settings:
            n_microbatches = _number(settings, "pipeline.microbatches")
        _check_kind("n_microbatches", n_microbatches, "an integer", int)
        self._counts = [n_microbatches] * replicas  # of a step that says no other
        world = os.environ.get("WORLD_SIZE", "1")
        if not world.isdecimal():
            raise ValueError(f"WORLD_SIZE: expected a whole number, got {world!r}")
        world = int(world)
        spares = _number(settings, "recovery.spares", 0)
        world = max(1, (world - spares) // (replicas * ranks))
        if spares > 0 and isinstance(stages, torch.nn.Module):
            raise ValueError(
                "stages: expected a list of modules or a function with settings[\"recovery.spares\"], because a spare "
                f"may take any part, got {text_of(stages)}"
            )
        self._is_emulated = settings.get("device.kind") == "emulated"
        if self._is_emulated:
            for name, value in {"stages": stages, "loss_fn": loss_fn, "optimizer": optimizer}.items():
                if value is not None:
                    raise ValueError(
                        f"{name}: expected None with emulated devices, which compute nothing, got {text_of(value)}"
                    )
            part_at, parts = None, n_stages or world
        else:
            part_at, parts = parts_of(stages, n_stages, world)
        own = {
            "pipeline.stages": parts // _number(settings, "pipeline.chunks"),
            "pipeline.microbatches": n_microbatches,
            "dispatch.policy": None if callable(policy) else policy,
            "dispatch.slots": slots,
            "train.seed": seed,
            "train.clip_norm": None if optimizer is None else 0,
        }
        own = {k: v for k, v in own.items() if v is not None and k not in settings}
        for key, value in own.items():
            if not is_value(value):
                raise TypeError(f"{_ARGUMENTS.get(key, key)}: expected a number or a text, got {described(value)}")
        settings = {k: text_of_setting(v) for k, v in with_whole_tasks({**own, **settings}).items()}
        if callable(policy) and settings.get("dispatch.mode") == "in-order":
            raise ValueError('policy: expected a name with settings["dispatch.mode"] = "in-order"')
        self.last = None  #: StepResult of the last step or evaluation
        say = lambda text: print(text, file=sys.stderr)

        def opened(lines):
            check_outside()
            job = _runtime.Job(lines, count is not None)
            self._model = Model(part_at, loss_fn, optimizer, autocast, job.values())
            #: Whether any part may come to this process.
            self._may_move = self._model.job["may_lack_nodes"] and not self._is_emulated
            if self._may_move and loss_fn is None:
                raise ValueError(f"loss_fn: expected a function in {_whose('last', True)}, got None")
            order = None
            if callable(policy):
                order = _order_of(policy, self._model.kept, int(settings["pipeline.stages"]))
            return self._call(
                _runtime.Runtime,
                job,
                self._model.make_rank,
                AgentStore,
                torch.backends.cpu.get_cpu_capability(),
                on_note or say,
                on_report or say,
                before_ranks=self._model.before_ranks,
                order=order,
                tell=self._model.tell,
                hear=self._model.hear,
                trace=trace,
                has_state=not self._is_emulated,
            )

        self._pipeline = called(opened, settings, {k: name for k, name in _ARGUMENTS.items() if k in own})
        close_at_exit(self._pipeline)
        if self._model.is_frozen and not self._is_emulated:
            _runtime.tell(on_note or say, "no parameter requires a gradient: training changes nothing")

    def step(
        self, *args, target=None, losses=None, return_outputs=True, update=True, n_microbatches=None, **kwargs
    ):
        """One step of the training. Returns the outputs of the last part, merged, in its process.

        A tensor is merged along its first dimension if its size there is the number of rows of the target (or of rows
        flattened with further dimensions of the target), or as `output_merge_spec` says. A number, text or None that
        is the same in all microbatches stays as it is. Anything else, for example a loss of each microbatch, becomes
        a list with one entry for each microbatch.

        The process of the first part passes the arguments, that of the last part the target. `losses`
        receives the loss of each microbatch. Keyword arguments go to the parts of this process whose forward
        has a parameter of that name. With update=False the gradients wait, and those of the next steps are
        added to them, up to a step with update=True: divide the loss where you want the mean, unless `count` was given.

        n_microbatches: replaces that of Pipeline() in this step: a number for each replica, or a list with one number
        per replica, some of which may be 0. All processes with arguments or a target must pass the same value.
        """
        by_replica = self._by_replica(n_microbatches) or self._counts
        batch = Batch.cut(args, kwargs, target, by_replica, *self._chunk_specs)
        return self._run(True, batch, losses, return_outputs, update).merged_outputs(self._output_merge_spec)

    def step_microbatches(
        self,
        arg_mbs=None,
        kwarg_mbs=None,
        target_mbs=None,
        losses=None,
        return_outputs=True,
        update=True,
        n_microbatches=None,
        costs=None,
    ):
        """A step whose microbatches are cut already and may differ in shape. Returns the list of their outputs.

        Lists of as many arguments (or tuples of them), dicts of keyword arguments, and targets as there are
        microbatches: any number, which may differ from step to step. The replicas share them evenly (the first ones
        get one more), unless n_microbatches, as in step(), says how many each replica has.

        costs: the estimated work of each microbatch, in any unit. Each replica then starts its microbatches in the
        order of rrfp.admission_order(). Outputs and losses come in the order given; sums, random numbers and the
        names of tasks are those of a loop over the microbatches in the order of their start. All processes must give the
        same costs.
        """
        by_replica = self._by_replica(n_microbatches)
        batch = Batch.of_microbatches(arg_mbs, kwarg_mbs, target_mbs, by_replica, self._counts, costs)
        return self._run(True, batch, losses, return_outputs, update).outputs_in_order()

    def eval(self, *args, target=None, losses=None, return_outputs=True, n_microbatches=None, **kwargs):
        """step() without backward and update, with the parts in evaluation mode."""
        by_replica = self._by_replica(n_microbatches) or self._counts
        batch = Batch.cut(args, kwargs, target, by_replica, *self._chunk_specs)
        return self._run(False, batch, losses, return_outputs, True).merged_outputs(self._output_merge_spec)

    def eval_microbatches(
        self,
        arg_mbs=None,
        kwarg_mbs=None,
        target_mbs=None,
        losses=None,
        return_outputs=True,
        n_microbatches=None,
    ):
        """step_microbatches() without backward and update, with the parts in evaluation mode."""
        by_replica = self._by_replica(n_microbatches)
        batch = Batch.of_microbatches(arg_mbs, kwarg_mbs, target_mbs, by_replica, self._counts)
        return self._run(False, batch, losses, return_outputs, True).outputs_in_order()

    @property
    def stages(self):
        """The parts in this process, by their position in the model; recover() may change which."""
        return self._model.modules

    @property
    def optimizers(self):
        """Those of the parts in this process that `optimizer` has made; recover() may change which."""
        return self._model.optimizers

    @property
    def steps(self):
        """Completed steps, also those before a checkpoint that the training resumed from."""
        return self._pipeline.steps

    @property
    def leads(self):
        """Whether this process is the one that reports for all."""
        return self._pipeline.leads

    def progress(self, batches, **options):
        """Yields `batches` under a bar of tqdm with the loss, the time and the bubble of the last step.

        The leading process shows it. `options` are those of tqdm, for example total=100.
        """
        from tqdm.auto import tqdm

        bar = tqdm(batches, **{"unit": "step", "disable": not self.leads, **options})
        for batch in bar:
            yield batch
            if self.last is not None:
                last = self.last
                loss = {} if last.loss is None else {"loss": f"{last.loss:.4g}"}
                bar.set_postfix(**loss, ms=f"{last.ms:.1f}", bubble=f"{last.bubble:.0%}")

    def state_dict(self):
        """Copies of the parameters, buffers and optimizers' states of the parts in this process, on the CPU.

        What is divided over tensor-parallel ranks has the rank in its name, as "0.weight@1".
        """
        self._check_idle()
        self._pipeline.check_open()
        state = {}
        with self._errors():
            for rank in self._model.ranks:
                for name, value in rank.named_state():
                    if name not in state:  # of another replica
                        state[name] = value.detach().to("cpu", copy=True)
        return state

    def load_state_dict(self, state):
        """Sets the state of the parts in this process; `state` may have more. `steps` does not change, nor do the
        optimizers if no name begins with "optimizer."."""
        self._check_idle()
        self._pipeline.check_open()
        _check_kind("load_state_dict()", state, "a dict of tensors", Mapping)
        for name, value in state.items():
            _check_kind("load_state_dict(): a name", name, "a text", str)
            _check_kind(f"load_state_dict(): '{name}'", value, "a tensor", torch.Tensor)
        with self._errors():
            for rank in self._model.ranks:  # All look before the first one changes.
                rank.check_loaded(state)
            for rank in self._model.ranks:
                rank.load_state(state)

    def recover(self):
        """Goes on after the loss of a process: when a call has raised an Error whose `kind` is "node_lost".

        Needs settings["recovery.max_restarts"]. It waits until the lost process was started again, for
        "recovery.hold_s" at most, and restores the newest step of which the state of all parts is held in the memory
        of some process, or a checkpoint. Go on with the batch after `steps`; the result is that of a run without
        losses. Raises an Error if no replacement joins, if the state is lost, or if this process was declared lost.
        """
        self._check_idle()
        self._model.divisor = 0
        self._call(self._pipeline.recover)
        self._has_ended = False

    def save(self):
        """Saves a checkpoint in the background, into settings["checkpoint.dir"]."""
        self._call(self._pipeline.save)

    def metrics(self):
        """The metrics of this process in the text format of Prometheus (docs/monitoring.md); from any thread."""
        return self._pipeline.metrics()

    def hang_report(self, why="requested"):
        """Passes a report on what every stage is doing to on_report."""
        _check_kind("hang_report()", why, "a text", str)
        self._pipeline.report(why)

    def report(self, step=None):
        """The timeline of a step (the last one), which Jupyter shows as a picture; needs trace=True.

        It has the stages of this process; after finish() in the leading process, those of all.
        """
        if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63):
            raise ValueError(f"step: expected the number of a step, or None, got {step!r}")
        return Timeline(self._call(self._pipeline.timeline, step))

    def write_trace(self, path):
        """Writes all recorded tasks to a file for Perfetto and rrfp-report; needs trace=True."""
        self._call(self._pipeline.write_trace, os.fspath(path))

    def finish(self):
        """Ends the training on all processes; every process must call it. Returns steps, loss_first and loss_last."""
        self._check_idle()
        self._has_ended = True
        summary = self._call(self._pipeline.finish)
        self._model.drop_gradients()
        return summary

    def close(self):
        """Ends without waiting for the other processes, which get an error."""
        check_outside()
        self._end()

    def _end(self, *why):
        self._has_ended = True
        if self._pipeline is not None:
            self._pipeline.close(*why)
            self._model.drop_gradients()

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        if kind is not None or self._has_ended:
            check_outside()
            return self._end(why_ended(error))
        had = self._raised
        try:
            self.finish()
        except Error as e:
            if str(e) != had:
                raise
            self.close()  # The program has had this error, and goes on.

    def __reduce__(self):
        raise TypeError("a Pipeline cannot be copied or pickled: expected its parts, or state_dict()")

    def __del__(self):
        try:
            self._end()
        except KeyboardInterrupt:  # Python would ignore it here.
            threading.Timer(0.01, _thread.interrupt_main).start()

    def _by_replica(self, n_microbatches):
        """The argument of a step as a list, or None."""
        if n_microbatches is None:
            return None
        replicas = len(self._counts)
        counts = [n_microbatches] * replicas if isinstance(n_microbatches, int) else n_microbatches
        is_list = isinstance(counts, (list, tuple)) and len(counts) == replicas
        if not is_list or not all(isinstance(n, int) and 0 <= n <= 65536 for n in counts) or sum(counts) == 0:
            raise ValueError(
                "n_microbatches: expected 1 to 65536, or a list with the number of each replica, "
                f"of which there are {replicas}, got {n_microbatches!r}"
            )
        return list(counts)

    def _run(self, training, batch, losses, return_outputs, update):
        self._check_idle()
        if losses is not None and not hasattr(losses, "extend"):
            raise TypeError(f"losses: expected a list, got {text_of(losses)}")
        check_flag("update", update)
        batch.keeps_outputs = return_outputs
        if self._is_emulated and (batch.has_inputs() or batch.has_targets()):
            raise ValueError("step(): expected no arguments with emulated devices, which compute nothing")
        may_move = self._may_move
        if (may_move or self._model.has_first) and not batch.has_inputs():
            raise ValueError(f"step(): expected arguments in {_whose('first', may_move)}, got none")
        if (may_move or self._model.has_last) and not batch.has_targets():
            raise ValueError(f"target: expected one in {_whose('last', may_move)}, got none")
        counts = []
        if self._count is not None and batch.has_targets():
            counts = [_whole(self._count(t)) for t in batch.targets]
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            raise ValueError("step() under torch.autocast: expected the argument `autocast` of Pipeline instead")
        if training and torch.is_inference_mode_enabled():
            raise ValueError("step() under torch.inference_mode(): expected none, because a step trains")
        self._model.begin(batch, counts, update if training else None)
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # tasks change it
                figures = self._call(self._pipeline.step, training, update, batch.by_replica)
            if self._is_emulated:
                figures |= {"loss": None, "losses": []}
            figures["losses"] = [figures["losses"][i] for i in batch.as_given(range(len(figures["losses"])))]
            self.last = StepResult(**figures)
        except BaseException:
            if not self._pipeline.is_over:  # Else other tasks may still add to the gradients, until close().
                self._model.drop_gradients()
            raise
        finally:
            self._model.batch = None
        if losses is not None:
            losses.extend(torch.tensor(loss, dtype=torch.float64, device="cpu") for loss in self.last.losses)
        return batch

    def _check_idle(self):
        """Refuses a call from a function of the running step, or from another thread meanwhile."""
        if self._model.batch is not None:
            raise Error("the pipeline is in a step or an evaluation: expected a call before or after it", "bad_input", 2)
        check_outside()

    @contextlib.contextmanager
    def _errors(self):
        """Errors of the state as those of the pipeline."""
        try:
            yield
        except (TypeError, ValueError, RuntimeError) as e:
            raise Error(str(e)) from e

    def _call(self, function, *arguments, **options):
        """Calls the runtime; an exception of a stage becomes the cause of its error."""
        try:
            return function(*arguments, **options)
        except Error as e:
            self._raised = str(e)
            self._model.kept.raise_as_cause(e)


def _check_kind(name, value, expected, kinds):
    if not isinstance(value, kinds):
        raise TypeError(f"{name}: expected {expected}, got {text_of(value)}")


def _number(settings, key, least=1):
    """A number that the pipeline needs before the runtime has checked the settings."""
    value = settings.get(key, least)
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = least - 1
    if number < least:
        raise ValueError(f"settings[\"{key}\"]: expected an integer >= {least}, got {text_of_setting(value)}")
    return number


def _order_of(policy, kept, n_stages):
    """The order of a stage by a function of the program, whose exception becomes the cause of the error."""

    def order(stage, n_microbatches):
        try:
            with kept:
                return list(policy(stage, n_stages, n_microbatches))
        except RuntimeError as e:
            raise RuntimeError(f"policy: {e}") from None

    return order


def _whose(part, may_move):
    return "every process, because parts may move" if may_move else f"the process of the {part} part"


def _whole(count):
    if int(count) != count:
        raise ValueError(f"count: expected a whole number of loss terms, got {float(count):g}")
    return int(count)
