"""The part of the model in this process: forwards, losses and optimizers, as the ranks call them."""

import contextlib
import contextvars
import copy
import inspect
import json
import math
import os
import sys
from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from . import _recomputation  # replaces functions of torch
from ._backward import leaves_of
from ._buffers import Buffers, refuse_change_of
from ._draws import Draws, Generator, turn
from ._errors import Error
from ._messages import decode, encode, tensors_of
from ._modules import adapts_parameters, forwards_in_order, is_compiled, is_dynamic_rotary, keep_device_guard, make_deterministic, one_line
from ._optimizers import JobOptimizer, Optimizer, Parameters
from ._parallel import RankGroup
from ._part import Part, may_have_hooks_of_accumulation
from ._rank import Kept
from ._training import TrainingRank, shape_of

_no_casting = contextlib.nullcontext()
_weyl = 0x9E3779B97F4A7C15  # an odd number: all parts of a model have different seeds


class Model:
    """The parts in this process and their optimizers.

    The runtime holds it. It must not refer to the Pipeline, which would then never be released.
    """

    def __init__(self, part_at, loss_fn, optimizer, autocast, job):
        self.part_at = part_at
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.job = job  # values of the settings
        self._known = {}  # by stage and rank: those of this process so far, the first one with the program's own parts
        self._originals = {}  # the program's own parts, by their position in the model
        self.before_ranks()
        self.local = {}  # tensors on devices between two parts here
        self.owners = {}  # of a name: the part that has it
        self.ties = {}  # of a tied parameter, by the position of its part: the shape and whether it is trained
        self.part_of = {}  # by the identity of a parameter
        self.statistics_of = {}  # the same of the statistics of a batch norm
        self.rotary = {}  # part that has an embedding
        self.all_keywords = set()  # that any part takes; with None, any keyword
        self.is_frozen = False  # all parts, when the pipeline opened
        # The forwards of parts with autocast take turns: the end of one empties a cache of the process, and the other
        # would convert a weight twice.
        self.turn = contextlib.nullcontext() if autocast is None else turn
        self.turn_of_tasks = None  # of parts that adapt parameters, or of compiled autograd
        self.context = contextvars.Context()
        self.autocast = autocast
        self.batch = None  # of the running step
        self.divisor = 0  # of gradients that wait
        self.kept = Kept()

    def casting(self, device):
        if self.autocast is None:
            return _no_casting
        return torch.autocast("cpu" if device is None else device.type, self.autocast)

    def before_ranks(self):
        """Also when the training goes on after a loss: other parts may be here then."""
        self.ranks = []
        self.modules = {}  # by their position in the model
        self.optimizers = []
        self.places = set()  # replica and position of each part here
        self.keywords = set()  # that the parts in this process take

    def make_rank(self, stage, rank, replica, group):
        with self.kept:
            known = self._known.setdefault((stage, rank), [])
            made = next((one for one in known if one not in self.ranks), None)
            if made is None:
                made = self._make_rank(stage, rank, group and RankGroup(group))
                known.append(made)
            elif group is not None:
                made.group.connect(group)
            made.take_place(replica)
            self.ranks.append(made)
            self.optimizers += made.optimizers
            for part in made.parts:
                self.modules.setdefault(part.index, part.module)
                self.places.add((replica, part.index))
                self.keywords |= part.keywords | ({None} if part.takes_all else set())
            return made

    def _make_rank(self, stage, rank, group):
        if group is not None and any(one.stage != stage or one.group.rank != rank for one in self.ranks):
            raise ValueError("pipeline.tp: expected one rank of one stage in each process, got more")
        device = self._device_of(len(self.ranks))
        parts = []
        for chunk, index in enumerate(self.job["parts_of"][stage]):
            with _named(f"stage {stage} chunk {chunk}"):
                parts.append(self._make_part(index, self.job["parts"], group, device))
        return TrainingRank(self, parts, stage, group, device)

    def make_optimizer(self, parameters, names):
        if self.optimizer is None or not parameters:
            return JobOptimizer(parameters, self.job)
        with _named("optimizer"):
            try:
                made = self.optimizer(Parameters(parameters, names))
            except ValueError:
                if any(p.requires_grad for p in parameters):
                    raise
                return Optimizer(None, parameters)  # It takes those that are trained, and there are none.
            if not hasattr(made, "step"):
                raise TypeError(f"expected the function to return an optimizer of torch.optim, got {text_of(made)}")
            if isinstance(made, torch.optim.LBFGS):
                raise TypeError("expected an optimizer whose step() needs no closure, got LBFGS")
            if any(made is other for other in self.optimizers):
                raise ValueError("expected an optimizer of its own for each stage, got the same one twice")
        return Optimizer(made, parameters)

    def tell(self):
        """What this process tells all others once its parts are made."""
        return json.dumps([sorted(self.keywords - {None}), None in self.keywords, self.has_trained(), self.owners, self.ties])

    def hear(self, texts):
        """What all processes tell, in the same order in each. Returns what is wrong with it, or None."""
        told = [json.loads(text) for text in texts]
        self.owners.clear()
        ties = {}
        for keywords, takes_all, _, owners, its_ties in told:
            self.all_keywords |= set(keywords) | ({None} if takes_all else set())
            ties |= its_ties
            for name, part in owners.items():
                if clash := self._clash(name, part):
                    return clash
        self.is_frozen = not any(has_trained for _, _, has_trained, *_ in told)
        sides = [f"part {part}: {text}" for part, text in sorted(ties.items(), key=lambda tie: int(tie[0]))]
        if sides and (len(sides) != 2 or len(set(ties.values())) != 1):
            return f"tied_parameter: expected two of one shape and dtype, in the first part and in the last, got {', '.join(sides)}"
        return None

    def _clash(self, name, part):
        """Notes whose parameter it is."""
        other = self.owners.setdefault(name, part)
        if other != part:
            return f"parameter '{name}' is in part {other} of the model and in part {part}: names must differ"
        return None

    def has_trained(self):
        return any(p.requires_grad for module in self.modules.values() for p in module.parameters())

    def drop_gradients(self):
        """Drops the gradients of a step that failed, and those that wait for an update that will not come."""
        for rank in self.ranks:
            rank.drop_gradients()

    def begin(self, batch, counts, update):
        """Refuses a keyword argument that no part takes, and to train a model of which nothing can change.

        `counts`: the loss terms of each microbatch; none: each counts once. `update`: None in an evaluation.
        """
        unknown = set().union(*batch.kwargs) - self.all_keywords
        if unknown and None not in self.all_keywords:
            raise TypeError(f"step(): no part has a parameter named {', '.join(sorted(unknown))}")
        if update is not None and 0 < len(self.modules) == self.job["parts"] and not self.has_trained():
            raise ValueError("step(): expected a parameter that requires a gradient, got none in any part")
        self.batch = batch
        self.context = contextvars.copy_context()  # which holds torch's settings, too
        dynamo = sys.modules.get("torch._dynamo")
        if dynamo is not None and dynamo.config.compiled_autograd:  # one of a process, and one thread at a time
            self.turn_of_tasks = turn
        self.kept.failure = None
        self.local.clear()
        for rank in self.ranks:
            for part in rank.parts:
                part.look_for_hooks()
        batch.counts = counts or [1] * len(batch.args)
        batch.divisor = sum(batch.counts)
        if update is not None:
            batch.divisor = self.divisor or batch.divisor
            self.divisor = batch.divisor if counts and not update else 0

    def _device_of(self, number):
        """Of the rank `number` of this process; None: the CPU."""
        if self.job["device"] != "cuda":
            return None
        if self.job["deterministic"]:
            make_deterministic()
        present = torch.cuda.device_count()
        chosen = self.job["gpus"] or list(range(present))
        if not chosen or max(chosen) >= present:
            raise Error(f'settings["device.gpus"]: expected some of the {present} devices here, got {chosen}', "bad_input", 2)
        local, processes = (int(os.environ.get(name, default)) for name, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
        own = chosen[local * len(chosen) // processes : (local + 1) * len(chosen) // processes]
        own = own or [chosen[local % len(chosen)]]
        return torch.device("cuda", own[number % len(own)])

    def _give_rotary(self, module):
        """Gives a part its own copy of rotary embeddings that depend on earlier texts, if another part has the same."""
        for parent in module.modules():
            for name, child in list(parent.named_children()):
                if is_dynamic_rotary(child) and self.rotary.setdefault(child, module) is not module:
                    parent.register_module(name, copy.deepcopy(child))

    def _make_part(self, index, count, group, device):
        original = self._originals.get(index)
        if original is not None and group is None:
            module = copy.deepcopy(original)  # of another replica
        else:
            with Generator((self.job["seed"] + _weyl * (index + 1)) % 2**64):
                module = self.part_at(index, count, *([] if group is None else [group]))
            self._originals.setdefault(index, module)
            if module is original:
                raise ValueError("stages: expected a different module for each replica, got the same one twice")
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"stages: expected a torch.nn.Module, got {type(module).__name__}")
        for name, value in module.named_parameters():
            if isinstance(value, torch.nn.parameter.UninitializedParameter):
                raise ValueError(f"stages: expected a lazy module to have run a forward before, got no shape of '{name}'")
            if hasattr(value, "to_local"):
                raise TypeError(
                    f"stages: expected plain tensors, got a {type(value).__name__} for the parameter '{name}': "
                    "rrfp.torch.ReadySchedule takes them, those of FSDP2 included"
                )
            check_shared(self.part_of, index, name, value)
        for name, value in module.named_buffers():
            if name.endswith("running_mean") and self.statistics_of.setdefault(id(value), index) != index:
                raise ValueError(f"stages: parts {self.statistics_of[id(value)]} and {index} share the statistics '{name}'")
        if device is not None:
            module.to(device)
        self._give_rotary(module)
        part = ModelPart(self, module, index, count, device)
        if group is not None:
            part.split_as_others()
        if is_compiled(module):
            # torch.compile traces a module in its forward, when nothing else may run modules.
            self.turn = turn
            keep_device_guard()
        if adapts_parameters(module):
            self.turn_of_tasks = turn
        if part.is_last and self.loss_fn is None:
            raise ValueError("loss_fn: expected a function in the process of the last part, got None")
        for name in [*part.names(), *map(part.name_of, part.buffers.saved)]:
            if name != part.tied and (clash := self._clash(name, index)):
                raise Error(clash, "bad_input", 2)
        return part


def _tied_parameter_of(module):
    """Its own, or that of a part inside it that is trained."""
    if hasattr(module, "tied_parameter"):
        return module.tied_parameter
    inside = []
    for prefix, part in module.named_modules():
        name = getattr(part, "tied_parameter", "")
        if name and part.get_parameter(name).requires_grad:
            inside.append(f"{prefix}.{name}")
    if len(inside) > 1:
        raise ValueError(f"tied_parameter: expected one in a part, got those of {' and '.join(inside)}")
    return inside[0] if inside else ""


class ModelPart(Part):
    """A part of the model in this process."""

    microbatches = ()  # of its replica in this step, numbered over all replicas
    replica = 0

    def __init__(self, model, module, index, count, device):
        super().__init__(module, index == 0, index + 1 == count)
        self.model = model
        self.index = index
        self.device = device
        self.recomputes = model.job["recompute"]
        self._losses = {}  # by microbatch: the tensor, and its terms
        self.tied = None
        self._modes = None  # of its modules before an evaluation
        self._step = 0
        self._draws = Draws(device)
        self._is_checked = False
        # Of torch.compile(), which passes on attributes, but not the names.
        inner = getattr(module, "_orig_mod", module)
        tied = _tied_parameter_of(inner)
        named = getattr(inner, "name_of_parameter", lambda name: "tied" if name == tied else f"{index}.{name}")
        self.name_of = lambda name: named(name.replace("_orig_mod.", ""))
        names = {name for name, _ in inner.named_parameters()}
        if tied and tied not in names:
            raise ValueError(f"tied_parameter: expected the name of a parameter of the part, got {tied!r}")
        if tied and count > 1:
            self.tied = self.name_of(tied)
            value = inner.get_parameter(tied)
            model.ties[index] = f"{shape_of(value)}{'' if value.requires_grad else ', frozen'}"
        whole = getattr(inner, "whole_parameters", ())
        if wrong := [name for name in whole if name not in names]:
            raise ValueError(f"whole_parameters: expected names of parameters of the part, got {wrong[0]!r}")
        #: Names of the parameters that each tensor-parallel rank has whole.
        self.whole = set(map(self.name_of, whole))
        if any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
            raise TypeError("expected a module in Python, got one of torch.jit, whose second run may have other bits than the first")
        parameters = inspect.signature(inner.forward).parameters.values()
        self.positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.keywords = {p.name for p in parameters if p.kind != p.VAR_KEYWORD}
        self.takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
        self.original = model._originals[index]  # another module in a further replica
        self._hooked = []  # names of its parameters with hooks
        self.forwards_in_order = forwards_in_order(module)
        self.buffers = Buffers(module, self.forwards_in_order)

    def local(self, way):
        is_here = self.device is not None and (self.replica, self.index + way) in self.model.places
        return self.model.local if is_here else None

    def names(self):
        return [self.name_of(name) for name, _ in self.module.named_parameters()]

    def look_for_hooks(self):
        """Between steps: the parts of other threads hold nodes of the same parameters."""
        if self.original is not self.module:
            named = self.original.named_parameters()
            self._hooked = [name for name, p in named if p._backward_hooks or may_have_hooks_of_accumulation(p)]

    def begin_step(self, step, trains):
        if self._hooked:
            raise RuntimeError(
                f"a hook on the parameter '{self._hooked[0]}', whose copy in another replica has none: expected one "
                "replica in each process"
            )
        if self.original is not self.module:
            for p, own in zip(self.original.parameters(), self.module.parameters()):
                own.requires_grad_(p.requires_grad)
        self.begin(trains)
        self.buffers.begin(trains, len(self.microbatches))
        self._losses.clear()
        self._has_gradient = False  # any loss of the step
        self._step = step
        self._set_mode(trains)

    def _set_mode(self, trains):
        """Modules that the program has put into evaluation mode stay there, also after an evaluation of all."""
        if not trains and self._modes is None:
            self._modes = [(module, module.training) for module in self.module.modules()]
            self.module.eval()
        if trains:
            for module, mode in self._modes or ():
                module.training = mode
            self._modes = None
            if not self.module.training:
                self.module.train()

    def seeds(self, mb):
        """The gradient of the loss of a microbatch: the step's is the mean over all loss terms."""
        return [torch.full_like(self._losses[mb][0], self.model.scale) / self.model.batch.divisor]

    def received(self, mb, message):
        batch, at = self.model.batch, self.microbatches[mb]
        passed = ()
        if self.is_first:
            args, inputs = _moved(batch.args[at], self.device), []
        else:
            args, inputs, rows = decode(message, self.device, local=self.before)
            if rows is not None:
                batch.rows = rows
                batch.check_rows_of_first(rows)
            args = args if isinstance(args, tuple) else (args,)
            # What the part before passes on counts more than what step() was given.
            passed = self.positional[: len(args)]
        kwargs = {
            k: _moved(v, self.device)
            for k, v in batch.kwargs[at].items()
            if k not in passed and (self.takes_all or k in self.keywords)
        }
        return inputs, (args, kwargs, inputs)

    def compute(self, mb, args, kwargs, inputs, is_again=False):
        model = self.model
        key = (model.job["seed"], self._step, self.microbatches[mb], self.index)
        given = tensors_of(tree_leaves((args, kwargs))) if self.recomputes else ()
        versions = [value._version for value in given]
        with self.buffers, model.turn, model.casting(self.device):
            try:
                output = self._draws.run(key, self.trains, self.module, args, kwargs)
            except RuntimeError as e:
                if "created in no_grad mode and is being modified inplace" in str(e):  # the view of _messages._leaf_of()
                    raise RuntimeError("forward changes its input in place: expected a new tensor, as with inplace=False") from e
                raise
            if versions != [value._version for value in given]:
                raise RuntimeError("forward changes its input in place, which pipeline.recompute would do again in backward")
        if self.is_last:
            return [self._loss_of(mb, output, inputs, is_again)], None
        if is_again:
            return tensors_of(tree_leaves(output)), None
        # The first microbatch tells the parts in other processes.
        rows = model.batch.rows if mb == 0 and len(model.modules) != model.job["parts"] else None
        capsule, tensors = encode(output, self.after, rows)
        self._check_leaves(tensors, inputs, "forward")
        return tensors, capsule

    def _loss_of(self, mb, output, inputs, is_again):
        model, batch, at = self.model, self.model.batch, self.microbatches[mb]
        if batch.keeps_outputs and not is_again:
            batch.outputs[at] = tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        key = (model.job["seed"], self._step, at, model.job["parts"])
        with model.turn, model.casting(self.device):
            given = (output, _moved(batch.targets[at], self.device))
            loss = self._draws.run(key, ("loss", self.trains), model.loss_fn, given, {})
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise TypeError(f"loss_fn: expected a scalar tensor, got {text_of(loss)}")
        self._check_leaves([loss], inputs, "loss_fn")
        if not is_again:
            self._losses[mb] = (loss.detach(), batch.counts[at])
            if self.device is None:  # Elsewhere it would wait for all work of the device.
                self._finite(mb)
            self._check_gradient(loss)
        return loss

    def _check_gradient(self, loss):
        """Some microbatches may have a constant for a loss, but not all: the step would train nothing."""
        self._has_gradient |= loss.requires_grad
        if self.trains and not self._has_gradient and len(self._losses) == len(self.microbatches):
            name = getattr(self.model.loss_fn, "__qualname__", type(self.model.loss_fn).__name__)
            raise RuntimeError(
                f"loss_fn '{name}': expected a loss that depends on a parameter which requires a gradient, got none in any "
                f"of the {len(self.microbatches)} microbatches: are the parameters frozen, or is a value detached?"
            )

    def losses(self):
        """(microbatch, mean, terms) of each."""
        found = [(mb, self._finite(mb), terms) for mb, (_, terms) in sorted(self._losses.items())]
        return [(mb, value / terms if terms else 0.0, terms) for mb, value, terms in found]

    def _finite(self, mb):
        value = self._losses[mb][0].item()
        if not math.isfinite(value) and not self.model.job["loss_scale"]:
            raise Error(
                f"the loss of microbatch {mb} is {value}: training has diverged, or its data is unusable", "bad_input", 2
            )
        return value

    def _check_leaves(self, outputs, inputs, what):
        """In the first forward of the training."""
        if not self.trains or self._is_checked:
            return
        self._is_checked = True
        own = {id(value) for value in (*self.module.parameters(), *inputs)}
        for leaf in leaves_of(outputs):
            if id(leaf) not in own:
                raise RuntimeError(
                    f"{what} uses a leaf that is not trained here: {shape_of(leaf)}; expected each leaf that requires "
                    "a gradient to be a parameter of its part of the model, or to be detached"
                )

    def _refuse_other_values(self):
        refuse_change_of(self.buffers.changed_in_step())
        super()._refuse_other_values()


def parts_of(stages, n_stages, world):
    """A function of (index, count) that returns a part, and the number of parts."""
    if n_stages is not None and (not isinstance(n_stages, int) or n_stages < 1):
        raise ValueError(f"n_stages: expected an integer >= 1, got {n_stages!r}")
    if not isinstance(stages, Iterable) and not callable(stages):
        named = "None" if stages is None else text_of(stages)
        raise TypeError(f"stages: expected a module, a list of modules or a function, got {named}")
    if isinstance(stages, torch.nn.Module):
        return lambda index, count, *group: stages, n_stages or world
    if callable(stages):
        return stages, n_stages or world
    parts = list(stages)
    if not parts:
        raise ValueError("stages: expected a module, a list of modules or a function, got an empty list")
    if n_stages not in (None, len(parts)):
        raise ValueError(f"n_stages: expected {len(parts)}, the length of the list, got {n_stages}")
    owner = {}  # of a parameter: the first part that has it
    for index, part in enumerate(parts):
        if not isinstance(part, torch.nn.Module):
            raise TypeError(f"stages[{index}]: expected a torch.nn.Module, got {type(part).__name__}")
        for name, value in part.named_parameters():
            check_shared(owner, index, name, value)

    def part_at(index, count, *group):
        if count != len(parts):
            raise ValueError(f"stages: expected {count} parts, got {len(parts)}")
        return parts[index]

    return part_at, len(parts)


def _moved(values, device):
    if device is None:
        return values
    return tree_map_only(torch.Tensor, lambda value: value.to(device, non_blocking=True), values)


def check_shared(owner, index, name, value):
    """`owner`: by the identity of a parameter, the first part that has it."""
    if owner.setdefault(id(value), index) != index:
        raise ValueError(
            f"stages: parts {owner[id(value)]} and {index} share the parameter '{name}': give each a copy, "
            "and name the copies in `tied_parameter` if they must stay equal"
        )


@contextlib.contextmanager
def _named(what):
    """Adds what was made to the text of an exception."""
    try:
        yield
    except Error as e:
        raise Error(f"{what}: {e}", e.kind, e.exit_code) from e
    except Exception as e:
        raise Error(f"{what}: {one_line(e)}", "bad_input", 2) from e


def text_of(value):
    return shape_of(value) if isinstance(value, torch.Tensor) else type(value).__name__
