"""The part of the model in this process, as the runtime calls it: forwards, losses and optimizers."""

import contextlib
import copy
import inspect
import json

import torch
from torch.utils._pytree import tree_map_only

from . import _recomputation
from ._buffers import Buffers
from ._libtorch import _rrfp
from ._messages import pack, unpack
from ._modules import forwards_in_order, is_compiled, is_dynamic_rotary, one_line
from ._optimizers import Optimizer, Parameters


class Model:
    """What the runtime calls: the parts in this process and their optimizers.

    The runtime holds it. It must not refer to the Pipeline, which would then never be released.
    """

    def __init__(self, part_at, loss_fn, optimizer, autocast, n_microbatches):
        self.part_at = part_at
        self.n_microbatches = n_microbatches  # of a replica
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.modules = {}
        self.optimizers = []
        self.rotary = {}  # part that has an embedding
        self.has_first = self.has_last = False
        self.parts = 0  # of the whole model
        self.keywords = set()  # that the parts in this process take
        self.all_keywords = set()  # that any part takes; with None, any keyword
        self.is_frozen = False  # all parts, when the pipeline opened
        self.turn = contextlib.nullcontext
        self.autocast = autocast
        self.batch = None  # of the running step
        self.batches = 0  # until now
        self.failure = None  # the first exception of a function of the program since _call()

    def casting(self, device):
        if self.autocast is None:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(device).type, self.autocast)

    def make_part(self, index, count, group):
        return self.kept(self._make_part, index, count, group)

    def make_optimizer(self, parameters, names):
        made = self.kept(self._make_optimizer, parameters, names)
        self.optimizers.append(made)
        return KeptOptimizer(self, Optimizer(made, parameters))

    def _make_optimizer(self, parameters, names):
        made = self.optimizer(Parameters(parameters, names))
        if not hasattr(made, "step"):
            raise TypeError(f"expected the function to return an optimizer of torch.optim, got {text_of(made)}")
        return made

    def tell(self):
        """The line that this process tells all others once its parts are made."""
        return json.dumps([sorted(self.keywords - {None}), None in self.keywords, self.has_trained()])

    def hear(self, lines):
        """The lines of all processes."""
        told = [json.loads(line) for line in lines.splitlines()]
        for keywords, takes_all, _ in told:
            self.all_keywords |= set(keywords) | ({None} if takes_all else set())
        self.is_frozen = not any(has_trained for _, _, has_trained in told)

    def has_trained(self):
        return any(p.requires_grad for module in self.modules.values() for p in module.parameters())

    def check_keywords(self, batch):
        """Refuses a keyword argument that no part takes."""
        if None in self.all_keywords:
            return
        unknown = {name for kwargs in batch.kwargs for name in kwargs} - self.all_keywords
        if unknown:
            raise TypeError(f"step(): no part has a parameter named {', '.join(sorted(unknown))}")

    def check_trained(self):
        """Refuses to train a model of which nothing can change."""
        if 0 < len(self.modules) == self.parts and not self.has_trained():
            raise ValueError("step(): expected a parameter that requires a gradient, got none in any part")

    def _give_rotary(self, module):
        """Gives a part its own embeddings that depend on the texts before, which parts of one model may share."""
        for parent in module.modules():
            for name, child in list(parent.named_children()):
                if is_dynamic_rotary(child) and self.rotary.setdefault(child, module) is not module:
                    parent.register_module(name, copy.deepcopy(child))

    def kept(self, function, *args):
        """Calls a function of the program on a thread of the runtime and keeps its first exception."""
        try:
            return function(*args)
        except BaseException as e:
            if self.failure is None:
                self.failure = e
            raise RuntimeError(one_line(e)) from None

    def _make_part(self, index, count, group):
        if group is not None and self.modules:
            raise ValueError("pipeline.tp: expected one rank of one stage in each process, got more")
        if index in self.modules:
            module = copy.deepcopy(self.modules[index])  # of another replica
        else:
            module = self.modules[index] = self.part_at(index, count, *([] if group is None else [group]))
        if isinstance(module, torch.nn.Module):
            self._give_rotary(module)
        part = Part(self, module, index, count)
        if is_compiled(module):
            # torch.compile traces a module in its forward, when nothing else may run modules.
            self.turn = _rrfp.GeneratorTurn
        self.has_first |= part.is_first
        self.has_last |= part.is_last
        self.parts = count
        self.keywords |= part.keywords | ({None} if part.takes_all else set())
        if part.is_last and self.loss_fn is None:
            raise ValueError("loss_fn: expected a function in the process of the last part, got None")
        tied = part.name_of(part.tied) if part.tied and (part.is_first or part.is_last) else ""
        names, tensors = [], []
        for name, value in module.named_parameters():
            if value.dtype != torch.float32 or value.device.type != "cpu":
                raise TypeError(
                    f"parameter '{name}': expected float32 on the CPU, got {value.dtype} on {value.device}"
                )
            names.append(part.name_of(name))
            tensors.append(value)
        return (
            names,
            tensors,
            tied,
            [part.name_of(name) for name in part.buffers.saved],
            part.buffers.saved_values,
            part.forwards_in_order,
            lambda *at: self.kept(_recomputation.with_hooks, part.forward, *at),
        )


class KeptOptimizer:
    """Keeps the exceptions of an optimizer."""

    def __init__(self, model, optimizer):
        self.step = lambda: model.kept(optimizer.step)
        self.state = lambda: model.kept(lambda: list(optimizer.state()))
        self.set_state = lambda found: model.kept(optimizer.set_state, found)


class Part:
    """A part of the model in this process, as the runtime calls it."""

    def __init__(self, model, module, index, count):
        if not isinstance(module, torch.nn.Module):
            raise TypeError(f"stages: expected a torch.nn.Module, got {type(module).__name__}")
        self.model = model
        self.module = module
        self.is_first = index == 0
        self.is_last = index + 1 == count
        self.training = None
        self.tied = getattr(module, "tied_parameter", "")
        self.name_of = getattr(
            module, "name_of_parameter", lambda name: "tied" if name == self.tied else f"{index}.{name}"
        )
        parameters = inspect.signature(module.forward).parameters.values()
        self.positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        self.keywords = {p.name for p in parameters if p.kind != p.VAR_KEYWORD}
        self.takes_all = any(p.kind == p.VAR_KEYWORD for p in parameters)
        self.buffers = Buffers(module)
        self.forwards_in_order = forwards_in_order(module)

    def forward(self, message, mb, training, device):
        """The message to the next part, or the loss."""
        if training != self.training:
            self.module.train(training)
            self.training = training
        batch = self.model.batch
        there = lambda values: _moved(values, device)
        args = there(batch.args[mb]) if self.is_first else (unpack(message),)
        if not self.is_first and isinstance(args[0], tuple):
            (args,) = args
        # What the part before passes on counts more than what step() was given.
        passed = () if self.is_first else self.positional[: len(args)]
        kwargs = {
            k: there(v)
            for k, v in batch.kwargs[mb].items()
            if k not in passed and (self.takes_all or k in self.keywords)
        }
        buffers = self.buffers
        buffers.begin(self.model.batches, training)
        before = None if self.forwards_in_order else buffers.marks()
        with self.model.turn(), self.model.casting(device), _recomputation.watched(buffers):
            output = self.module(*args, **kwargs)
        self.check_buffers(before)
        if not self.is_last:
            return pack(output)
        if batch.keeps_outputs:
            batch.outputs[mb] = tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        with self.model.casting(device):
            loss = self.model.loss_fn(output, there(batch.targets[mb]))
        if not isinstance(loss, torch.Tensor) or loss.dim() != 0:
            raise TypeError(f"loss_fn: expected a scalar tensor, got {text_of(loss)}")
        return loss

    def check_buffers(self, before):
        """Refuses changes of buffers whose values would be those of another order, or that a checkpoint lacks."""
        buffers = self.buffers
        is_last = buffers.end(self.model.n_microbatches)
        if before is None:
            name = buffers.added_or_removed() if is_last else None
            if name is not None:
                raise RuntimeError(
                    f"forward registers or removes the buffer '{name}', which a checkpoint could not restore: "
                    "expected it registered when the pipeline opens, as a tensor"
                )
            return
        name = buffers.changed(before) or (buffers.changed_in_step() if is_last else None)
        if name is not None:
            raise RuntimeError(
                f"forward changes the buffer '{name}', whose value would depend on the order of the "
                "microbatches: expected an attribute forwards_in_order = True of the module"
            )


def parts_of(stages, n_stages, world):
    """A function of (index, count) that returns a part, and the number of parts."""
    if stages is None:
        raise TypeError("stages: expected a module, a list of modules or a function, got None")
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
            if owner.setdefault(id(value), index) != index:
                raise ValueError(
                    f"stages: parts {owner[id(value)]} and {index} share the parameter '{name}': give each a copy, "
                    "and name the copies in `tied_parameter` if they must stay equal"
                )

    def part_at(index, count, *group):
        if count != len(parts):
            raise ValueError(f"stages: expected {count} parts, got {len(parts)}")
        return parts[index]

    return part_at, len(parts)


def _moved(values, device):
    if device == "cpu":
        return values
    return tree_map_only(torch.Tensor, lambda value: value.to(device, non_blocking=True), values)


def text_of(value):
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {list(value.shape)}"
    return type(value).__name__
