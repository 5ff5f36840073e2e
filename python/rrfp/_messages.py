"""What a part gives to the next one, as the one tensor that travels between them (rrfp/pack.hpp)."""

import json

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from . import _rrfp


def pack(value):
    """Returns the tensor that travels. Raises TypeError for what cannot."""
    if isinstance(value, torch.Tensor) and value.dtype == torch.float32:
        return _rrfp.pack([value], "")
    leaves, spec = tree_flatten(value)
    tensors, others = [], []
    for leaf in leaves:
        is_tensor = isinstance(leaf, torch.Tensor)
        if not is_tensor and not (leaf is None or isinstance(leaf, (bool, int, float, str))):
            raise TypeError(
                f"between stages: expected tensors, numbers, texts or None, got {type(leaf).__name__}"
            )
        tensors.append(leaf if is_tensor else None)
        others.append(None if is_tensor else leaf)
    return _rrfp.pack(tensors, json.dumps([treespec_dumps(spec), others]))


def unpack(message):
    """What pack() was given; the tensors are views of the message."""
    tensors, note = _rrfp.unpack(message)
    if not note:
        return tensors[0]
    spec, others = json.loads(note)
    leaves = [other if tensor is None else tensor for tensor, other in zip(tensors, others)]
    return tree_unflatten(leaves, treespec_loads(spec))
