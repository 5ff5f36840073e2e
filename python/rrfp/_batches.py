"""The arguments of a step as microbatches."""

import functools
from collections.abc import Iterable

import torch
from torch.distributed.pipelining.microbatch import (
    TensorChunkSpec,
    _CustomReducer,
    split_args_kwargs_into_chunks,
)
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from ._packing import admission_order


class Batch:
    """The arguments, the targets and the outputs of a step that is running, by microbatch."""

    def __init__(self, args, kwargs, targets, by_replica, check_rows_of_first=lambda rows: None, rows=None):
        self.args, self.kwargs, self.targets = args, kwargs, targets
        self.order = None  # by place in the step: the microbatch that was given; None: as they were given
        self.by_replica = by_replica  # how the replicas share the microbatches
        self.rows = rows  # in all, of what was cut by rows
        #: Refuses what was given here where the process of the first part has cut other rows.
        self.check_rows_of_first = check_rows_of_first
        self.keeps_outputs = True
        self.outputs = {}

    @staticmethod
    def cut(args, kwargs, target, by_replica, args_chunk_spec, kwargs_chunk_spec):
        """Splits what step() was given into as many microbatches as the replicas have together."""
        n = sum(by_replica)
        kwargs = ordered_as(kwargs_chunk_spec, kwargs)
        named = {f"argument {i}": value for i, value in enumerate(args)}
        rows = check_rows(named, args_chunk_spec, n, None)
        named = {f"argument '{name}'": value for name, value in kwargs.items()}

        def check(first_rows):
            known = check_rows(named, kwargs_chunk_spec, n, first_rows)
            check_target(target, n, known)
            return known

        rows = check(rows)
        arg_mbs, kwarg_mbs, targets = [()] * n, [{}] * n, [None] * n
        if args or kwargs:
            try:
                arg_mbs, kwarg_mbs = split_args_kwargs_into_chunks(
                    args, kwargs, n, args_chunk_spec, kwargs_chunk_spec
                )
            except (AssertionError, IndexError, RuntimeError) as e:
                raise ValueError(f"args_chunk_spec, kwargs_chunk_spec: expected a spec for each argument: {e}") from e
        if target is not None:
            (targets, _) = split_args_kwargs_into_chunks((target,), {}, n)
            targets = [t[0] for t in targets]
        return Batch(arg_mbs, kwarg_mbs, targets, by_replica, check, rows)

    @staticmethod
    def of_microbatches(arg_mbs, kwarg_mbs, target_mbs, by_replica, usual, costs=None):
        """The lists that step_microbatches() was given.

        by_replica: None means as many as they have, or, without any list, `usual` of each replica.
        """
        given = {"arg_mbs": arg_mbs, "kwarg_mbs": kwarg_mbs, "target_mbs": target_mbs, "costs": costs}
        for name, values in given.items():
            if isinstance(values, str) or not isinstance(values, (Iterable, type(None))):
                raise TypeError(f"{name}: expected a list with one for each microbatch, got {type(values).__name__}")
        given = {name: list(values) for name, values in given.items() if values is not None}
        if by_replica is None and not given:
            by_replica = usual
        n = None if by_replica is None else sum(by_replica)
        costs = given.pop("costs", None)
        if costs is not None:
            if n not in (None, len(costs)):
                raise ValueError(f"costs: expected {n}, one for each microbatch, got {len(costs)}")
            n = len(costs)
        for name, values in given.items():
            n = len(values) if n is None else n
            if len(values) != n:
                raise ValueError(f"{name}: expected {n} microbatches, got {len(values)}")
        empty = {"arg_mbs": (), "kwarg_mbs": {}, "target_mbs": None}
        args, kwargs, targets = (given.get(name, [value] * n) for name, value in empty.items())
        check_dicts(kwargs)
        if n == 0:
            raise ValueError("step_microbatches(): expected at least one microbatch, got none")
        even = [n // len(usual) + (replica < n % len(usual)) for replica in range(len(usual))]
        batch = Batch([a if isinstance(a, tuple) else (a,) for a in args], kwargs, targets, by_replica or even)
        if costs is not None:
            batch.admit_by(costs)
        return batch

    def admit_by(self, costs):
        """Orders the microbatches of each replica by their costs."""
        self.order = []
        for count in self.by_replica:
            first = len(self.order)
            self.order += [first + i for i in admission_order(costs[first : first + count])]
        self.args, self.kwargs, self.targets = ([mbs[i] for i in self.order] for mbs in (self.args, self.kwargs, self.targets))

    def as_given(self, places):
        """Some places in the step, in the order in which their microbatches were given."""
        return sorted(places, key=None if self.order is None else self.order.__getitem__)

    def adopt(self, by_replica):
        """Takes the microbatches of the step as the leading process has given them."""
        if self.order is None and not (self.has_inputs() or self.has_targets()):
            n = sum(by_replica)
            self.args, self.kwargs, self.targets = [()] * n, [{}] * n, [None] * n
        elif by_replica != self.by_replica:
            raise ValueError(
                f"step(): expected {_text(by_replica)} microbatches, as the leading process has given, got "
                f"{_text(self.by_replica)}"
            )

    def has_inputs(self):
        return any(self.args) or any(self.kwargs)

    def has_targets(self):
        return any(target is not None for target in self.targets)

    def outputs_in_order(self):
        # From the device; its work of this step is done.
        return [tree_map_only(torch.Tensor, _on_cpu, self.outputs[i]) for i in self.as_given(self.outputs)]

    def merged_outputs(self, spec=None):
        """The outputs of all microbatches as one; None where the last stage is elsewhere."""
        outputs = self.outputs_in_order()
        if not outputs:
            return None
        return merged(outputs, spec, [_rows_of(self.targets[i]) for i in sorted(self.outputs)])


def check_dicts(kwarg_mbs):
    for at, kwargs in enumerate(kwarg_mbs):
        if not isinstance(kwargs, dict):
            raise TypeError(f"kwarg_mbs[{at}]: expected a dict, got {type(kwargs).__name__}")


def ordered_as(spec, kwargs):
    """The keyword arguments in the order of their specs, with which torch pairs them by position."""
    if not isinstance(spec, dict) or not kwargs:
        return kwargs
    if spec.keys() != kwargs.keys():
        raise ValueError(
            f"kwargs_chunk_spec: expected a spec for each keyword argument, {', '.join(kwargs)}, got {', '.join(spec) or 'none'}"
        )
    return {name: kwargs[name] for name in spec}


def merged(values, spec, rows):
    """One value of those of all microbatches, which must not raise: the step has counted.

    Tensors of rows are joined, or as `spec` says. A number, text or None that is the same in all stays one.
    Anything else is the list of the values. `rows`: by microbatch, the sizes that count its rows; empty if
    unknown.
    """
    if isinstance(spec, _CustomReducer):
        try:
            return functools.reduce(spec.reduce_fn, values, spec.init_value)
        except Exception:
            return list(values)
    has_own = spec is not None and not isinstance(spec, TensorChunkSpec)
    shape_of = spec if has_own else values[0]
    of_all = (shape_of, *values)
    if all(type(v) is dict for v in of_all) and all(v.keys() == shape_of.keys() for v in values):
        shape_of, *values = [{key: v[key] for key in values[0]} for v in of_all]
    specs, shape = _children(shape_of)
    if shape.is_leaf():
        return _merged_leaves(values, spec, rows)
    if not has_own:
        specs = [spec] * len(specs)
    below = [_children(value) for value in values]
    if any(its != shape for _, its in below):
        return list(values)
    parts = zip(*(children for children, _ in below))
    return tree_unflatten([merged(list(part), s, rows) for part, s in zip(parts, specs)], shape)


def check_merge_spec(spec):
    for leaf in tree_leaves(spec):
        if not isinstance(leaf, (TensorChunkSpec, _CustomReducer, type(None))):
            raise TypeError(
                "output_merge_spec: expected TensorChunkSpec(dimension), a reducer or None for each output, "
                f"got {type(leaf).__name__}"
            )


def _children(value):
    """One level of a tree."""
    return tree_flatten(value, is_leaf=lambda v: v is not value)


def _merged_leaves(values, spec, rows):
    first = values[0]
    if first is None or isinstance(first, (bool, int, float, str)):
        return first if all(type(v) is type(first) and v == first for v in values) else list(values)
    are_rows = all(isinstance(v, torch.Tensor) and v.dim() > 0 and v.dtype == first.dtype and not v.is_quantized for v in values)
    if spec is None:
        are_rows = are_rows and all(not sizes or v.size(0) in sizes for v, sizes in zip(values, rows))
    elif not isinstance(spec, TensorChunkSpec):
        are_rows = False
    try:
        return torch.cat(values, 0 if spec is None else spec.split_dim) if are_rows else list(values)
    except (RuntimeError, IndexError):  # They differ in another dimension.
        return list(values)


def _on_cpu(value):
    return value if value.is_meta else value.cpu()


def _rows_of(target):
    """The sizes of the first dimension of an output whose rows are those of the target, or its rows flattened."""
    sizes = set()
    for value in tree_leaves(target):
        if isinstance(value, torch.Tensor) and value.dim() > 0 and not value.is_nested:
            sizes |= {value.shape[:dims].numel() for dims in range(1, value.dim() + 1)}
    return sizes


def _text(by_replica):
    return " and ".join(map(str, by_replica))


def check_rows(named, spec, n, rows):
    """Refuses tensors with fewer rows than microbatches or, without a spec, with others than `rows`.

    Returns `rows`, or those of the first tensor that is cut.
    """
    specs = [None] * len(named) if spec is None else spec.values() if isinstance(spec, dict) else spec
    for (name, value), its in zip(named.items(), specs):
        cuts = tree_leaves(its)
        for i, leaf in enumerate(tree_leaves(value)):
            cut = TensorChunkSpec(0) if spec is None else cuts[i] if i < len(cuts) else None
            if not isinstance(leaf, torch.Tensor) or not isinstance(cut, TensorChunkSpec):
                continue
            size = check_size(leaf, cut.split_dim, n, "argument")
            rows = size if rows is None else rows
            if spec is None and size != rows:
                raise ValueError(
                    f"{name}: expected {rows} rows, as the other arguments have, got {size}; args_chunk_spec and "
                    "kwargs_chunk_spec say how to cut other tensors"
                )
    return rows


def check_target(target, n, rows):
    """Refuses a target whose rows are neither those of the arguments nor a multiple that is cut where they are."""
    for leaf in tree_leaves(target):
        if not isinstance(leaf, torch.Tensor):
            continue
        size = check_size(leaf, 0, n, "target")
        if rows is not None and size != rows and (size % rows != 0 or rows % n != 0):
            raise ValueError(f"target: expected {rows} rows, as the arguments have, got {size}")


def check_size(tensor, dim, n, name):
    size = tensor.size(dim) if -tensor.dim() <= dim < tensor.dim() else 0
    if size < n:
        raise ValueError(f"{name}: expected at least {n} rows, one per microbatch, got {size}")
    return size
