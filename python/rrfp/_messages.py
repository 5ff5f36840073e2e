"""What a part gives to the next one, as the one tensor that travels between them (rrfp/pack.hpp)."""

import enum
import functools
import json
import sys

import torch
from torch.utils._pytree import (
    SUPPORTED_SERIALIZED_TYPES,
    _register_namedtuple,
    tree_flatten,
    tree_unflatten,
    treespec_dumps,
    treespec_loads,
)

from ._libtorch import _rrfp


def pack(value):
    """Returns the tensor that travels. Raises TypeError for what cannot."""
    if type(value) is torch.Tensor and value.dtype == torch.float32 and _has_plain_strides(value):
        return _packed([value], "")
    leaves, spec = tree_flatten(value, is_leaf=_is_size)
    tensors, others = [], []
    for leaf in leaves:
        is_tensor = isinstance(leaf, torch.Tensor)
        tensors.append(leaf if is_tensor else None)
        others.append(None if is_tensor else _as_json(leaf))
        if is_tensor and type(leaf) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"between stages: expected plain tensors, got {type(leaf).__name__}")
    tuples = []
    for kind in _namedtuples(spec):
        tuples.append(_name_of(kind))
        _known(kind)
    return _packed(tensors, json.dumps([treespec_dumps(spec), others, tuples]))


def unpack(message):
    """What pack() was given; the tensors are views of the message."""
    tensors, note = _rrfp.unpack(message)
    if not note:
        return tensors[0]
    spec, others, tuples = json.loads(note)
    for name in tuples:
        _known(_named(name))
    leaves = [_of_json(other) if tensor is None else tensor for tensor, other in zip(tensors, others)]
    return tree_unflatten(leaves, treespec_loads(spec))


def _packed(tensors, note):
    try:
        return _rrfp.pack(tensors, note)
    except RuntimeError as e:
        raise TypeError(str(e).split("\n")[0]) from None


def _has_plain_strides(tensor):
    """Whether it travels as it is: a packed tensor keeps other strides."""
    if tensor.layout != torch.strided:
        return True  # and is refused
    expected = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if stride != expected:
            return False
        expected *= size
    return True


def _is_size(value):
    return type(value) is torch.Size


def _as_json(leaf):
    if _is_size(leaf):
        return {"size": list(leaf)}
    if isinstance(leaf, enum.Enum):
        return {"enum": _name_of(type(leaf)), "name": leaf.name}
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise TypeError(f"between stages: expected tensors, numbers, texts or None, got {type(leaf).__name__}")


def _of_json(other):
    if not isinstance(other, dict):
        return other
    return torch.Size(other["size"]) if "size" in other else _named(other["enum"])[other["name"]]


def _name_of(kind):
    """By which every process that has imported the module finds the class."""
    name = [kind.__module__, kind.__qualname__]
    try:
        if _named(name) is kind:
            return name
    except (AttributeError, KeyError):
        pass
    raise TypeError(f"between stages: expected classes that their modules have by name, got {kind.__qualname__}")


def _named(name):
    module, path = name
    return functools.reduce(getattr, path.split("."), sys.modules[module])


def _namedtuples(spec):
    """The classes of named tuples in a tree."""
    if isinstance(spec.context, type) and hasattr(spec.context, "_fields"):
        yield spec.context
    for child in spec.children():
        yield from _namedtuples(child)


def _known(kind):
    """Lets torch write the class of a named tuple into a message."""
    if kind not in SUPPORTED_SERIALIZED_TYPES:
        _register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")
