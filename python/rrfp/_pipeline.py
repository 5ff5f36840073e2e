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
from ._timeline import Timeline, check_reason, check_step


#: By the key of a job: the argument of Pipeline() that sets it.
_ARGUMENTS = {
    "dispatch.policy": "policy",
    "dispatch.slots": "slots",
    "pipeline.microbatches": "n_microbatches",
    "train.seed": "seed",
}


@dataclasses.dataclass(frozen=True)
class StepResult:
    """The results of a step or an evaluation, the same on every process."""

    step: int  #: number, from 1; evaluations are counted separately
    loss: float  #: mean over the microbatches; None on emulated devices, which compute nothing
    losses: list  #: loss of each microbatch, in order
    gradient_norm: float  #: norm before clipping; 0 for an evaluation
    is_skipped: bool  #: whether the gradient was infinite or NaN, so that nothing changed ("train.loss_scale")
    lr: float  #: learning rate of the optimizer from `settings`; meaningless if `optimizer` was given
    count: int  #: number of loss terms
    ms: float  #: duration
    bubble: float  #: share of the stages' time without a task
    weight_shares: list  #: for each stage, the share of its backward time that went to W


class Pipeline:
    """Trains a model whose parts run as the stages of a pipeline.

    stages: one of
        - a list of torch.nn.Module: the parts of the model in order;
        - one module: the part of this process, one of the WORLD_SIZE processes that torchrun started;
        - a function of (index, count) that returns part `index` of `count`. `n_stages` is the number of parts
          (default: WORLD_SIZE). With settings["pipeline.tp"] the function gets the tensor-parallel ranks of the
          stage as a third argument, with `rank`, `size` and `all_reduce(tensor)`;
        - None, with settings["device.kind"] = "emulated": tasks compute nothing and take the times of the keys
          "cost" and "jitter", and step() takes no arguments.
        The first part takes the arguments of step(). Every other part takes what the previous one returned: a
        tensor, or a tuple or dict of tensors, numbers and None.
    loss_fn: loss_fn(output, target) returns the mean over a microbatch, or the sum if `count` is given. Only the
        process of the last part uses it.
    n_microbatches: the number of microbatches of a step, for each replica if settings["pipeline.replicas"] is set.
        step() may override it.
    args_chunk_spec, kwargs_chunk_spec: how step() splits its arguments, as in torch.distributed.pipelining. Without
        them, arguments are split along their first dimension, and all tensors must have the same number of rows.
    output_merge_spec: how step() merges outputs: TensorChunkSpec(dimension), a reducer such as sum_reducer, or None
        for the rule of step(). One spec applies to all outputs; or pass specs in the structure of the outputs.
    policy: the hint that ranks the ready tasks: a name from rrfp.policies(), or a function of (stage, n_stages,
        n_microbatches) that returns the names of all tasks of a step, most urgent first: "F0" and either "BW0", or
        "B0" and "W0" to split the backward. The function is called before each step.
    slots: how many microbatches may hold activations on a stage: a number, "p", "1f1b" or "auto".
    optimizer: a function that creates the optimizer for the parameters of one stage, for example
        lambda params: torch.optim.AdamW(params, 1e-3). params is a list; params.named() also gives the names, for
        parameter groups. None: the optimizer of the section [train] of `settings`.
    count: count(target) returns the number of loss terms of a microbatch. Losses are divided by the sum of these
        numbers over the microbatches of the step, or of all steps that share one update (update=False).
    seed: the seed of the random numbers that the parts draw.
    autocast: torch.bfloat16 or torch.float16, to run each forward and the loss under torch.autocast. For float16,
        set "train.loss_scale" in `settings` (torch's GradScaler uses 65536): a step with an infinite gradient is
        skipped and halves the scale.
    settings: keys of a job (docs/job-reference.md), for example
        {"jitter.compute": "lognormal", "run.hang_timeout_s": 30}.
    on_note, on_report: called with each line for the user, and with each hang report. None: print to stderr. If they
        raise, the exception goes to sys.unraisablehook, and training continues.
    trace: whether to record each task, for report() and write_trace().

    The result is bitwise equal to that of a loop over the microbatches, whatever the order of execution. Buffers that
    forward changes would depend on that order, so a stage that has them (batch norm, rotary embeddings that depend on
    the text length, or a part with the attribute forwards_in_order = True) runs its forwards in microbatch order.

    A process with one part runs its tasks on the thread that calls step(). If several parts share a process, each
    stage has its own thread. Only one thread may call the pipeline.
    """

    _pipeline = None  # also if __init__ is called with wrong arguments
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
        """Runs one training step. Returns the merged outputs of the last part in its process, None elsewhere.

        The process of the first part passes the arguments, and the process of the last part the target. Keyword
        arguments go to the parts of this process whose forward has a parameter of that name.

        losses: a list that receives the loss of each microbatch.
        update: if False, the gradients are kept, and those of the next steps are added to them until a step with
            update=True. To get the mean, divide the loss by the number of steps, unless `count` was given.
        n_microbatches: overrides the argument of Pipeline() for this step: one number for every replica, or a list
            with one number per replica, some of which may be 0. All processes with arguments or a target must pass
            the same value.

        Unless `output_merge_spec` says otherwise, a tensor is merged along its first dimension if its size there is
        the number of rows of the target (or of rows flattened with further dimensions of the target). A number,
        string or None that is the same in all microbatches is returned once. Anything else, such as a loss per
        microbatch, becomes a list with one entry per microbatch.
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
        """Runs a step on microbatches that are already split and may differ in shape. Returns a list of their outputs.

        arg_mbs, kwarg_mbs, target_mbs: lists with one entry per microbatch: its argument (or a tuple of arguments),
            a dict of its keyword arguments, and its target. Their length may differ from step to step.
        n_microbatches: as in step(). By default the replicas share the microbatches evenly, and the first replicas
            get one more if needed.
        costs: the estimated work of each microbatch, in any unit. Each replica then starts its microbatches in the
            order of rrfp.admission_order(). Outputs and losses are returned in the order given; sums, random numbers
            and task names are those of a loop over the microbatches in starting order. All processes must pass the
            same costs.
        """
        by_replica = self._by_replica(n_microbatches)
        batch = Batch.of_microbatches(arg_mbs, kwarg_mbs, target_mbs, by_replica, self._counts, costs)
        return self._run(True, batch, losses, return_outputs, update).outputs_in_order()

    def eval(self, *args, target=None, losses=None, return_outputs=True, n_microbatches=None, **kwargs):
        """Like step(), but without backward and update, and with the parts in evaluation mode."""
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
        """Like step_microbatches(), but without backward and update, and with the parts in evaluation mode."""
        by_replica = self._by_replica(n_microbatches)
        batch = Batch.of_microbatches(arg_mbs, kwarg_mbs, target_mbs, by_replica, self._counts)
        return self._run(False, batch, losses, return_outputs, True).outputs_in_order()

    @property
    def stages(self):
        """The parts in this process, by their position in the model. recover() may change which parts these are."""
        return self._model.modules

    @property
    def optimizers(self):
        """The optimizers that `optimizer` has created for the parts in this process. recover() may replace them."""
        return self._model.optimizers

    @property
    def steps(self):
        """The number of completed steps, including those before the checkpoint that training resumed from."""
        return self._pipeline.steps

    @property
    def leads(self):
        """Whether this process is the one that reports for all processes."""
        return self._pipeline.leads

    def progress(self, batches, **options):
        """Yields `batches` and shows a tqdm bar with the loss, the time and the bubble of the last step.

        Only the leading process shows the bar. `options` go to tqdm, for example total=100.
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
        """Returns CPU copies of the parameters, buffers and optimizer states of the parts in this process.

        The name of a tensor that is divided over tensor-parallel ranks ends with the rank, as in "0.weight@1".
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
        """Sets the state of the parts in this process. `state` may contain more than these parts.

        `steps` does not change, and neither do the optimizers if no name begins with "optimizer.".
        """
        self._check_idle()
        self._pipeline.check_open()
        _check_kind("load_state_dict()", state, "a dict of tensors", Mapping)
        for name, value in state.items():
            _check_kind("load_state_dict(): a name", name, "a text", str)
            _check_kind(f"load_state_dict(): '{name}'", value, "a tensor", torch.Tensor)
        with self._errors():
            setters = [rank.setter_of(state) for rank in self._model.ranks]  # All look before the first one changes.
            for set_state in setters:
                set_state()

    def recover(self):
        """Recovers from the loss of a process. Call it when a call has raised an Error whose `kind` is "node_lost".

        Requires settings["recovery.max_restarts"]. Waits at most "recovery.hold_s" until the lost process has been
        started again. Then restores the newest step for which the processes hold the state of all parts in memory, or
        a checkpoint. Continue with the batch after `steps`; the result is that of a run without losses. Raises an
        Error if no replacement joins, if the state is lost, or if this process was declared lost.
        """
        self._check_idle()
        self._model.divisor = 0
        self._call(self._pipeline.recover)
        self._has_ended = False

    def save(self):
        """Saves a checkpoint to settings["checkpoint.dir"]. Returns once the state is copied; the files follow."""
        self._check_idle()
        self._call(self._pipeline.save)

    def metrics(self):
        """Returns the metrics of this process as text for Prometheus (docs/monitoring.md). Any thread may call it."""
        return self._pipeline.metrics()

    def hang_report(self, why="requested"):
        """Passes a report of what every stage is doing to on_report."""
        check_reason(why)
        self._pipeline.report(why)

    def report(self, step=None):
        """Returns the timeline of a step (default: the last one), which Jupyter shows as a picture. Needs trace=True.

        The timeline has the stages of this process; in the leading process, after finish(), the stages of all.
        """
        check_step(step)
        return Timeline(self._call(self._pipeline.timeline, step))

    def write_trace(self, path):
        """Writes all recorded tasks to a file for Perfetto and rrfp-report; needs trace=True."""
        self._call(self._pipeline.write_trace, os.fspath(path))

    def finish(self):
        """Ends training on all processes; every process must call it. Returns steps, loss_first and loss_last."""
        self._check_idle()
        self._has_ended = True
        summary = self._call(self._pipeline.finish)
        self._model.drop_gradients()
        return summary

    def close(self):
        """Ends this process's pipeline without waiting for the other processes, which get an error."""
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
        had = self._model.kept.raised
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
        if (may_move or 0 in self._model.modules) and not batch.has_inputs():
            raise ValueError(f"step(): expected arguments in {_whose('first', may_move)}, got none")
        if (may_move or self._model.job["parts"] - 1 in self._model.modules) and not batch.has_targets():
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
            result = function(*arguments, **options)
        except Error as e:
            self._model.kept.raise_as_cause(e)
        self._model.kept.raise_if_ends()
        return result


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
