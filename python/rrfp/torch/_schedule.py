"""A schedule of torch.distributed.pipelining that runs the tasks that are ready."""

import inspect
import os
import sys

import torch
from torch.distributed.pipelining.schedules import PipelineScheduleMulti

from .. import _runtime
from .._batches import check_dicts, ordered_as
from .._closing import close_at_exit
from .._errors import Error
from .._rank import Kept
from .._settings import called, check_flag, check_settings, with_whole_tasks
from .._timeline import Timeline, check_reason, check_step
from ._domain import mesh_finder, ranks_of
from ._part import Local, StagePart
from ._rendezvous import Rendezvous, next_number, ranks_of_group
from ._watch import WatchedRank

#: By the name of an option: the key of a job that it sets.
_KEYS = {"policy": "dispatch.policy", "slots": "dispatch.slots", "hang_timeout_s": "run.hang_timeout_s"}


class ReadySchedule(PipelineScheduleMulti):
    """A schedule for stages of torch.distributed.pipelining: each rank runs the ready task that the policy ranks first.

    stages: the PipelineStage of this rank, or a list of its stages (a loop or a V over the ranks).
    n_microbatches, loss_fn, args_chunk_spec, kwargs_chunk_spec, output_merge_spec, scale_grads,
        backward_requires_autograd: as in torch's schedules.
    policy: the hint that ranks the ready tasks, one of rrfp.policies().
    slots: how many microbatches may hold activations on a rank: a number, "p", "1f1b", "auto" or "none".
    split_backward: whether weight gradients run as separate tasks if the policy wants it. "auto": except in compiled
        parts and in parts with hooks on the accumulation of parameters.
    domain: the ranks that must run the same tasks in the same order because their tasks contain collectives: a process
        group, a device mesh or global ranks. None: found from the parameters that are DTensors.
    forwards_in_order: whether the stages of this rank run their forwards in microbatch order. None: only stages with a
        batch norm, a spectral norm or an attribute forwards_in_order = True do.
    gradient_order: "exact" adds gradients in microbatch order, so the result does not depend on the order of execution;
        "any" adds them as they come and keeps fewer of them in memory.
    seed: the seed of the forwards' random numbers, which are those of rrfp.keyed_generator(seed, step, microbatch,
        stage). None: the seed of torch's generator at the first step.
    first_step: the number of the first step, so that a resumed training draws the same random numbers.
    trace: whether to record each task, for report() and write_trace().
    hang_timeout_s: if no task finishes for this many seconds, step() raises on all ranks and says who waits for what.
    settings: further keys of a job (docs/job-reference.md), for example {"jitter.compute": "lognormal"}.
    on_note, on_report: called with lines for the user, and with hang reports. None: print to stderr.

    All ranks must create their schedules in the same order and make the same calls of step() and eval(). Microbatches
    may differ in shape. Tasks run on the thread that calls step().
    """

    def __init__(
        self,
        stages,
        n_microbatches,
        loss_fn=None,
        args_chunk_spec=None,
        kwargs_chunk_spec=None,
        output_merge_spec=None,
        scale_grads=True,
        backward_requires_autograd=True,
        *,
        policy="bfw_plus",
        slots=None,
        split_backward="auto",
        domain=None,
        forwards_in_order=None,
        gradient_order="exact",
        seed=None,
        first_step=1,
        trace=False,
        hang_timeout_s=60.0,
        settings=None,
        on_note=None,
        on_report=None,
    ):
        stages = list(stages) if isinstance(stages, (list, tuple)) else [stages]
        if not stages or not all(hasattr(stage, "stage_index") for stage in stages):
            got = ", ".join(type(stage).__name__ for stage in stages) or "none"
            raise ValueError(f"stages: expected a PipelineStage, or several, got {got}")
        for name, value in (("n_microbatches", n_microbatches), ("first_step", first_step)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected an integer >= 1, got {value!r}")
        if forwards_in_order is not None:
            check_flag("forwards_in_order", forwards_in_order)
        stages.sort(key=lambda stage: stage.stage_index)
        check_settings(settings)
        for key in settings or {}:
            if key in ("name", "transport.key_file") or str(key).startswith("pipeline."):
                raise ValueError(f'settings["{key}"]: expected none, because the schedule sets it')
        if seed is not None and (not isinstance(seed, int) or not 0 <= seed < 2**64):
            raise ValueError(f"seed: expected an integer from 0 to 2^64 - 1, got {seed!r}")
        check_flag("trace", trace)
        if gradient_order not in ("exact", "any"):
            raise ValueError(f"gradient_order: expected 'exact' or 'any', got {gradient_order!r}")
        if split_backward not in (True, False, "auto"):
            raise ValueError(f"split_backward: expected True, False or 'auto', got {split_backward!r}")
        device = _device_of(stages)
        _check_shares_nothing(stages)
        _check_is_chain(stages)
        if any(stage.dw_builder is not None for stage in stages):
            raise ValueError("stages: expected no dw_builder: W is found in the graph of the forward")
        if policy not in _runtime.policies():
            raise ValueError(f"policy: expected one of {', '.join(_runtime.policies())}, got {policy!r}")
        known = inspect.signature(PipelineScheduleMulti.__init__).parameters
        if "backward_requires_autograd" in known:
            others = {"backward_requires_autograd": backward_requires_autograd}
        else:
            others = {}
            self._backward_requires_autograd = backward_requires_autograd
        for name, value, kind in (("args_chunk_spec", args_chunk_spec, (list, tuple)), ("kwargs_chunk_spec", kwargs_chunk_spec, dict)):
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"{name}: expected a {'dict' if kind is dict else 'tuple'}, got {value!r}")
        ranks_of_stages = [stage.stage_index_to_group_rank for stage in stages]
        super().__init__(
            stages,
            n_microbatches,
            loss_fn=loss_fn,
            args_chunk_spec=args_chunk_spec,
            kwargs_chunk_spec=kwargs_chunk_spec,
            output_merge_spec=output_merge_spec,
            scale_grads=scale_grads,
            **others,
        )
        for stage, ranks in zip(stages, ranks_of_stages):  # of another schedule that has these stages, too
            stage.stage_index_to_group_rank = ranks
        self._domain = domain
        self._forwards_in_order = forwards_in_order
        self._seed, self._first_step = seed, first_step
        self._number = next_number("stages", ranks_of_group(stages[0].group))
        self._local = Local(device, {stage.stage_index for stage in stages})
        self._parts = [
            StagePart(stage, self._local, split_backward, gradient_order == "exact", mesh_finder(stage.submod))
            for stage in stages
        ]
        self._traces = trace
        self._say = [on_note or _print, on_report or _print]
        self._options = {"policy": policy, "slots": slots, "hang_timeout_s": hang_timeout_s}
        self._settings = {_KEYS[name]: value for name, value in self._options.items()} | with_whole_tasks(settings or {})
        self._runtime = None
        self._place = None
        self._is_closed = False
        self.last = None  #: figures of the last step: its number, duration in ms, and bubble

    def step(
        self,
        *args,
        target=None,
        losses=None,
        return_outputs=True,
        loss_kwargs=None,
        arg_mbs=None,
        kwarg_mbs=None,
        target_mbs=None,
        finalize_gradients=True,
        **kwargs,
    ):
        """Runs one step: forward and backward of all microbatches. Afterwards the gradients are in `grad`.

        As in torch's schedules, the rank of the first stage passes the arguments and the rank of the last stage the
        target. Pass them whole, or already split as arg_mbs, kwarg_mbs and target_mbs: lists whose length may differ
        from n_microbatches. `losses` gets the loss of each microbatch. On the rank of the last stage, returns the
        merged outputs, or a list if they cannot be merged, unless return_outputs=False. finalize_gradients=False leaves
        the reduction and the scaling of the gradients of FSDP stages to a later step.
        """
        if self._has_backward and self._backward_requires_autograd and not torch.is_grad_enabled():
            raise RuntimeError("step() needs gradients, got torch.no_grad(): call eval() for forwards alone")
        self._check_not_closed()
        batch = self._batch(args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs, loss_kwargs, losses)
        batch.keeps_outputs = return_outputs
        self._open()
        self._run(batch)
        for part in reversed(self._parts):
            if not self._has_backward:
                part.release()
            elif finalize_gradients or not part.is_sharded:
                part.end(batch.n if self.scale_grads else 1)
        if not any(stage.is_last for stage in self._stages):
            return None
        if losses is not None and self._loss_fn is not None:
            losses[:] = [batch.losses[mb] for mb in range(batch.n)]
        if not return_outputs:
            return None
        outputs = [batch.outputs[mb] for mb in range(batch.n)]
        try:
            return self._merge_outputs(outputs)
        except (AttributeError, IndexError, RuntimeError, TypeError):  # of different sizes, or no tensors; the step has counted
            return outputs

    def eval(self, *args, target=None, losses=None, **options):
        """Like step(), but runs only forwards, under no_grad."""
        trains, self._has_backward = self._has_backward, False
        try:
            with torch.no_grad():
                return self.step(*args, target=target, losses=losses, **options)
        finally:
            self._has_backward = trains

    def report(self, step=None):
        """Returns the timeline of a step (default: the last one) as a picture for Jupyter. Needs trace=True."""
        check_step(step)
        return Timeline(self._open().timeline(step))

    def write_trace(self, path):
        """Writes all recorded tasks to a file for Perfetto and rrfp-report; needs trace=True."""
        self._open().write_trace(os.fspath(path))

    def hang_report(self, why="requested"):
        """Passes a report of what every rank is doing to on_report."""
        check_reason(why)
        self._open().report(why)

    def metrics(self):
        """Returns the metrics of this rank as text for Prometheus."""
        return self._open().metrics()

    def close(self):
        """Leaves the pipeline. All ranks must call it after their last step.

        Otherwise the other ranks report a lost rank, and threads and connections stay until the program ends.
        """
        self._is_closed = True
        if self._runtime is not None:
            runtime, self._runtime = self._runtime, None
            try:
                runtime.finish()
            except Error as e:
                if str(e) != self._kept.raised:
                    raise

    # ---- steps

    def _batch(self, args, kwargs, target, arg_mbs, kwarg_mbs, target_mbs, loss_kwargs, losses):
        n = None  # not known without inputs
        given = {"arg_mbs": arg_mbs, "kwarg_mbs": kwarg_mbs, "target_mbs": target_mbs}
        if losses is not None and not isinstance(losses, list):
            raise TypeError(f"losses: expected a list, got {type(losses).__name__}")
        if any(value is not None for value in given.values()):
            if args or kwargs or target is not None:
                raise ValueError("step(): expected whole or split inputs, got both")
            for name, value in given.items():
                if value is None:
                    continue
                if not isinstance(value, (list, tuple)) or not value or n not in (None, len(value)):
                    raise ValueError(f"{name}: expected a list of {n or 'microbatches'}, got {_size_of(value)}")
                n = len(value)
            arg_mbs = [tuple(a) if isinstance(a, (list, tuple)) else (a,) for a in arg_mbs or [()] * n]
            kwarg_mbs = kwarg_mbs or [{}] * n
            check_dicts(kwarg_mbs)
        else:
            n = self._n_microbatches
            try:
                arg_mbs, kwarg_mbs = self._split_inputs(args, ordered_as(self._kwargs_chunk_spec, kwargs))
            except RuntimeError as e:
                raise ValueError(f"arguments: expected rows for {n} microbatches: {e}") from e
            for name, value in {"arguments": arg_mbs, "keyword arguments": kwarg_mbs}.items():
                if len(value) != n:
                    raise ValueError(f"{name}: expected rows for {n} microbatches, got {len(value)}")
            if not isinstance(target, (torch.Tensor, type(None))):
                raise TypeError(f"target: expected a tensor, or target_mbs, got {type(target).__name__}")
            target_mbs = list(torch.tensor_split(target, n)) if target is not None else None
            n = n if args or kwargs or target is not None else None
        has_last = any(stage.is_last for stage in self._stages)
        needs_loss = self._has_backward or losses is not None
        if has_last and self._loss_fn is not None and target_mbs is None and needs_loss:
            raise ValueError("target: expected one on the rank of the last stage, got None")
        loss_fn = None if target_mbs is None else self._loss_fn
        return _Batch(n, arg_mbs, kwarg_mbs, target_mbs, loss_fn, loss_kwargs or {})

    def _run(self, batch):
        self._kept.failure = None
        self._local.tensors.clear()
        for part in self._parts:
            part.batch = batch
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # tasks change it
                figures = self._runtime.step(self._has_backward, False, [] if batch.n is None else [batch.n])
            self.last = {name: figures[name] for name in ("step", "ms", "bubble")}
        except Error as e:
            for part in self._parts:
                part.abandon()
            self._kept.raise_as_cause(e)
        finally:
            for part in self._parts:
                part.batch = None

    # ---- opening

    def _check_not_closed(self):
        if self._is_closed or self._runtime is None and self._place is not None:
            raise Error("the pipeline is closed")

    def _open(self):
        if self._runtime is not None:
            return self._runtime
        self._check_not_closed()
        if self._seed is None:
            self._seed = torch.initial_seed()
        ranks = ranks_of(self._domain, [stage.submod for stage in self._stages])
        own = [stage.stage_index for stage in self._stages]
        alike = {"n_microbatches": self._n_microbatches, "scale_grads": self.scale_grads, "first_step": self._first_step}
        alike |= self._options
        others = self._settings.keys() - set(_KEYS.values())
        alike |= {f'settings["{key}"]': self._settings[key] for key in others if not key.startswith("transport.")}
        self._place = place = Rendezvous(self._stages[0].group, self._number, ranks, own, alike)
        placement = _placement_of([told["stages"] for told in place.stages], self._num_stages)
        self.stage_index_to_group_rank = {
            index: rank for rank, told in enumerate(place.stages) for index in told["stages"]
        }
        key_file = place.key_file()
        settings = {
            "name": place.name,
            "pipeline.stages": len(place.stages),
            "pipeline.chunks": len(own),
            "pipeline.placement": placement,
            "pipeline.microbatches": self._n_microbatches,
            "pipeline.tp": len(place.domain),
            "transport.key_file": key_file,
            **self._settings,
        }
        for part in self._parts:
            part.seed, part.steps_before = self._seed, self._first_step - 1
            if len(place.domain) > 1:
                part.split_as_others()
        in_order = self._forwards_in_order
        if in_order is None:
            in_order = any(part.forwards_in_order for part in self._parts)
        self._kept = Kept()
        self._rank = WatchedRank(self._parts, self._kept, in_order, place.domain)
        try:
            self._runtime = called(
                lambda lines: _runtime.Runtime(
                    _runtime.Job(lines, False),
                    lambda *at: self._rank,
                    lambda *at: place,
                    torch.backends.cpu.get_cpu_capability(),
                    *self._say,
                    look=place.look,
                    place=(place.node, place.size, place.host),
                    trace=self._traces,
                ),
                {key: value for key, value in settings.items() if value is not None},
                {_KEYS[name]: name for name, value in self._options.items() if settings[_KEYS[name]] is value},
            )
        finally:
            os.unlink(key_file)
        close_at_exit(self._runtime)
        return self._runtime


class _Batch:
    """The inputs and results of a step that is running, by microbatch."""

    def __init__(self, n, args, kwargs, targets, loss_fn, loss_kwargs):
        self.n = n  # None until the step begins, where it has no inputs
        self.args, self.kwargs, self.targets = args, kwargs, targets
        self.loss_fn, self.loss_kwargs = loss_fn, loss_kwargs  # loss_fn: None where nobody needs the loss
        self.keeps_outputs = True
        self.outputs = {}
        self.losses = {}

    def adopt(self, n):
        """Takes the number of microbatches that the rank of the first stage has given."""
        if self.n is None:
            self.n, self.args, self.kwargs = n, [()] * n, [{}] * n
        elif self.n != n:
            raise ValueError(f"step(): expected {n} microbatches, as on the rank of the first stage, got {self.n}")


def _device_of(stages):
    """The one device of all stages of this rank; None: the CPU."""
    devices = {torch.device(stage.device) for stage in stages}
    if len(devices) != 1 or next(iter(devices)).type not in ("cpu", "cuda"):
        raise ValueError(f"stages: expected them on the CPU or on one CUDA device, got {', '.join(sorted(map(str, devices)))}")
    device = devices.pop()
    if device.type == "cpu":
        return None
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _check_shares_nothing(stages):
    owner = {}  # of a parameter: the first stage that has it
    for stage in stages:
        for name, p in stage.submod.named_parameters():
            if owner.setdefault(id(p), stage) is not stage:
                raise ValueError(
                    f"stages: stages {owner[id(p)].stage_index} and {stage.stage_index} share the parameter '{name}': "
                    "expected a copy in each, whose gradients the program adds"
                )


def _check_is_chain(stages):
    """Of stages that torch's pipeline() has traced."""
    info = getattr(stages[0], "pipe_info", None)
    nodes = [node for node in info.graph.nodes if node.op == "call_module"] if info else []
    for index, node in enumerate(nodes):
        for given in node.all_input_nodes:
            source = given.args[0] if given.op == "call_function" else given  # an element of its outputs
            taken = nodes.index(source) if source in nodes else -1  # an argument of the model
            if taken != index - 1:
                name = f"an output of stage {taken}" if taken >= 0 else "an argument of the model"
                raise ValueError(f"stages: expected a chain, but stage {index} takes {name} ('{given.name}')")


def _placement_of(stages, total):
    """The placement of the stages of all ranks."""
    p = len(stages)
    chunks = [len(own) for own in stages]
    if len(set(chunks)) == 1 and sum(chunks) == total:
        if chunks[0] == 1 and stages == [[rank] for rank in range(p)]:
            return "linear"
        if stages == [list(range(rank, total, p)) for rank in range(p)]:
            return "interleaved"
        if stages == [sorted({rank, 2 * p - 1 - rank}) for rank in range(p)]:
            return "v"
    raise ValueError(f"stages: expected one stage a rank, a loop over the ranks or a V, got {stages}")


def _size_of(value):
    return len(value) if isinstance(value, (list, tuple)) else type(value).__name__


def _print(text):
    print(text, file=sys.stderr)
