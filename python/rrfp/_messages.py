"""What a part gives to its neighbour, as the one buffer that travels between them.

A contiguous tensor of a type that DLPack knows travels as it is. Everything else is packed into bytes:
8 bytes with the length of a JSON text, the text, and the tensors, each at a multiple of 64 bytes.
"""

import enum
import functools
import itertools
import json
import math
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
from torch.utils.dlpack import from_dlpack, to_dlpack

# uint8 marks what is packed.
_plain = {
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
}
_alignment = 64
_keys = itertools.count()  # of tensors that stay in this process
_most_gaps = 16  # a copy with the strides of a tensor takes no more than so many times the memory of its elements


def encode(value, local=None, note=None):
    """The capsule that travels, and the tensors of `value` in order. Raises TypeError for what cannot travel.

    local: a dict in which a receiver in this process finds the tensors on devices. note: a number for the receiver.
    """
    if note is None and type(value) is torch.Tensor and value.requires_grad == torch.is_grad_enabled() and _travels_alone(value):
        return to_dlpack(value.detach()), [value]
    structure, leaves = _flattened(value)
    return _packed(structure, leaves, local, note), tensors_of(leaves)


def decode(capsule, device=None, mesh_of=None, local=None):
    """What encode() was given, its tensors (views of the message, those with a gradient as leaves), and the note.

    mesh_of(names): the device mesh of this process with those dimensions, for DTensors.
    """
    message = from_dlpack(capsule)
    if message.dtype != torch.uint8:
        value = _at_home(message, device)
        if torch.is_grad_enabled() and value.dtype.is_floating_point:
            value = _leaf_of(value)
        return value, [value], None
    structure, leaves, note = _unpacked(message, device, mesh_of, local)
    return _built(structure, leaves), tensors_of(leaves), note


def encode_gradients(gradients, local=None):
    """The capsule of a list of tensors and None."""
    if len(gradients) == 1:
        only = gradients[0]
        if type(only) is torch.Tensor and _travels_alone(only):
            return to_dlpack(only.detach())
    return _packed("l", list(gradients), local)


def decode_gradients(capsule, device=None, mesh_of=None, local=None):
    message = from_dlpack(capsule)
    if message.dtype != torch.uint8:
        return [_at_home(message, device)]
    return _unpacked(message, device, mesh_of, local)[1]


def tensors_of(leaves):
    """Each once."""
    return list({id(leaf): leaf for leaf in leaves if isinstance(leaf, torch.Tensor)}.values())


# ---- containers


def _flattened(value):
    """A text that describes the containers, and the leaves."""
    if type(value) in (tuple, list) and not any(map(_is_container, value)):
        return "t" if type(value) is tuple else "l", list(value)
    if not _is_container(value):
        return "", [value]
    named = []

    def is_leaf(inner):
        for key in inner if isinstance(inner, dict) else ():
            if not isinstance(key, (str, int, float, enum.Enum, type(None))):
                raise TypeError(f"between stages: expected dicts whose keys are strings or numbers, got {key!r}")
        if isinstance(inner, tuple) and hasattr(inner, "_fields"):
            _known(type(inner))
            named.append(_name_of(type(inner)))
        return type(inner) is torch.Size

    leaves, spec = tree_flatten(value, is_leaf=is_leaf)
    return [treespec_dumps(spec), named], leaves


def _built(structure, leaves):
    if structure == "":
        return leaves[0]
    if structure in ("t", "l"):
        return tuple(leaves) if structure == "t" else leaves
    spec, named = structure
    for name in named:
        _known(_named(name))
    return tree_unflatten(leaves, treespec_loads(spec))


def _is_container(value):
    return not (value is None or isinstance(value, (torch.Tensor, bool, int, float, str, torch.Size)))


def _known(kind):
    """Lets torch write the class of a named tuple into a message."""
    if kind not in SUPPORTED_SERIALIZED_TYPES:
        _register_namedtuple(kind, serialized_type_name=f"{kind.__module__}.{kind.__qualname__}")


def _name_of(kind):
    """By which every process that has imported the module finds the class."""
    name = [kind.__module__, kind.__qualname__]
    try:
        if _named(name) is kind:
            return name
    except (AttributeError, KeyError):
        pass
    raise TypeError(f"between stages: expected classes that can be found by name in their modules, got {kind.__qualname__}")


def _named(name):
    module, path = name
    return functools.reduce(getattr, path.split("."), sys.modules[module])


# ---- leaves


def _packed(structure, leaves, local, note=None):
    texts, parts, places = [], [], {}
    at = 0
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            texts.append(_text_of(leaf))
            continue
        if id(leaf) in places:
            texts.append({"same": places[id(leaf)]})
            continue
        places[id(leaf)] = len(texts)
        if local is not None and leaf.device.type != "cpu" and type(leaf) is torch.Tensor:
            key = next(_keys)
            local[key] = leaf.detach()
            texts.append({"local": key, "grad": leaf.requires_grad})
            continue
        text, data = _described(leaf)
        texts.append(text)
        parts.append((at, data))
        at = _aligned(at + data.numel() * data.element_size())
    head = json.dumps([structure, texts, note]).encode()
    begin = _aligned(8 + len(head))
    devices = {data.device for _, data in parts if data.is_cuda}
    packed = torch.empty(begin + at, dtype=torch.uint8, device="cpu", pin_memory=bool(devices))
    prefix = bytearray(len(head).to_bytes(8, "little") + head)
    packed[: len(prefix)] = torch.frombuffer(prefix, dtype=torch.uint8)
    for at, data in parts:
        size = data.numel() * data.element_size()
        packed[begin + at : begin + at + size].view(data.dtype).view(data.shape).copy_(data, non_blocking=True)
    for device in devices:
        torch.cuda.current_stream(device).synchronize()
    return to_dlpack(packed)


def _unpacked(message, device, mesh_of, local):
    length = int.from_bytes(message[:8].numpy().tobytes(), "little")
    structure, texts, note = json.loads(message[8 : 8 + length].numpy().tobytes())
    begin = at = _aligned(8 + length)
    leaves = []
    for text in texts:
        if isinstance(text, dict) and "same" in text:
            leaves.append(leaves[text["same"]])
            continue
        if isinstance(text, dict) and "local" in text:
            leaves.append(_as_leaf(local.pop(text["local"]).to(device), text))
            continue
        if not isinstance(text, dict) or "dtype" not in text:
            leaves.append(_of_text(text))
            continue
        dtype, stored = getattr(torch, text["dtype"]), text.get("stored", text["shape"])
        size = math.prod(stored) * dtype.itemsize
        data = _at_home(message[at : at + size].view(dtype), device).view(stored)
        at = begin + _aligned(at - begin + size)
        leaf = _laid_out(data, text)
        if "mesh" in text:
            leaf = _distributed(leaf, text, mesh_of)
        leaves.append(_as_leaf(leaf, text))
    return structure, leaves, note


def _as_leaf(tensor, text):
    return _leaf_of(tensor) if text["grad"] and torch.is_grad_enabled() else tensor


def _leaf_of(tensor):
    """A view: of another leaf, autocast keeps the cast, as of a weight, and adds the gradients of its uses in the lower
    precision. In a plain loop this tensor is no leaf."""
    with torch.no_grad():
        return tensor.view_as(tensor).requires_grad_(True)


def _described(leaf):
    """How to build the tensor again, and the data that travels."""
    from torch.distributed.tensor import DTensor

    text = {}
    if isinstance(leaf, DTensor):
        mesh = leaf.device_mesh.mesh_dim_names
        if mesh is None:
            raise TypeError("between stages: expected a DTensor whose device mesh names its dimensions")
        text["mesh"] = list(mesh)
        text["placements"] = [_text_of_placement(p) for p in leaf.placements]
        text["whole"] = [list(leaf.shape), list(leaf.stride())]
        data = leaf.detach().to_local()
    else:
        result = leaf.trigger_wait() if hasattr(leaf, "trigger_wait") else leaf  # of a collective that may still run
        if type(result) not in (torch.Tensor, torch.nn.Parameter):
            raise TypeError(f"between stages: expected plain tensors, got {type(leaf).__name__}")
        data = _dense(result.detach())
    text |= {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(data.shape), "grad": leaf.requires_grad}
    if data.numel() == 0 or _has_plain_strides(data):
        return text, data
    stored = [1 if stride == 0 else size for size, stride in zip(data.shape, data.stride())]
    last = _last_offset(stored, data.stride())
    if last is None:
        return text, data  # arrives contiguous
    text["strides"] = list(data.stride())
    if last + 1 == math.prod(stored):
        text |= {"stored": [last + 1], "whole_memory": True}
        return text, data.as_strided((last + 1,), (1,))
    text["stored"] = stored
    return text, data.as_strided(stored, data.stride())


def _laid_out(data, text):
    strides = text.get("strides")
    if strides is None:
        return data
    if "whole_memory" in text:
        return data.as_strided(text["shape"], strides)
    return torch.empty_strided(data.shape, strides, dtype=data.dtype).copy_(data).as_strided(text["shape"], strides)


def _last_offset(sizes, strides):
    """The offset of the last element; None where a copy with these strides is impossible or far too large."""
    last = 0
    for stride, size in sorted((stride, size) for stride, size in zip(strides, sizes) if size > 1):
        if stride <= last:
            return None
        last += stride * (size - 1)
    return last if last < _most_gaps * math.prod(sizes) else None


def _dense(tensor):
    """Resolves conjugation and negation; refuses tensors whose values are not the bytes of their memory."""
    kind = (
        "nested"
        if tensor.is_nested
        else "meta"
        if tensor.is_meta
        else "quantized"
        if tensor.is_quantized
        else "sparse or blocked"
        if tensor.layout != torch.strided
        else None
    )
    if kind is not None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        raise TypeError(f"between stages: expected dense tensors, got a {kind} tensor of {dtype}")
    return tensor.resolve_conj().resolve_neg()


def _travels_alone(tensor):
    return (
        tensor.dtype in _plain
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_nested
        and not tensor.is_neg()
        and _has_plain_strides(tensor)
    )


def _has_plain_strides(tensor):
    """Whether it is contiguous also by the strides of dimensions of size 1, by which kernels choose a format."""
    return tensor.stride() == _plain_strides(tensor.shape)


@functools.lru_cache(1024)
def _plain_strides(shape):
    return tuple(math.prod(shape[i:]) for i in range(1, len(shape) + 1))


def _text_of(leaf):
    if type(leaf) is torch.Size:
        return {"size": list(leaf)}
    if isinstance(leaf, enum.Enum):
        kind = {"enum": _name_of(type(leaf))}
        # Flags that are combined have no name that is a member.
        return kind | ({"name": leaf.name} if leaf.name in type(leaf).__members__ else {"flags": leaf.value})
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise TypeError(f"between stages: expected tensors, numbers, strings or None, got {type(leaf).__name__}")


def _of_text(text):
    if not isinstance(text, dict):
        return text
    if "size" in text:
        return torch.Size(text["size"])
    kind = _named(text["enum"])
    return kind[text["name"]] if "name" in text else kind(text["flags"])


def _distributed(local, text, mesh_of):
    from torch.distributed.tensor import DTensor

    shape, stride = text["whole"]
    return DTensor.from_local(
        local,
        mesh_of(tuple(text["mesh"])),
        [_placement_of(p) for p in text["placements"]],
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )


def _text_of_placement(placement):
    from torch.distributed.tensor import Partial, Replicate, Shard

    if type(placement) is Shard:
        return f"S{placement.dim}"
    if isinstance(placement, Replicate):
        return "R"
    if isinstance(placement, Partial) and placement.reduce_op == "sum":
        return "P"
    raise TypeError(f"between stages: expected a DTensor that is sharded, replicated or partial, got {placement}")


def _placement_of(text):
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Replicate() if text == "R" else Partial() if text == "P" else Shard(int(text[1:]))


def _at_home(tensor, device):
    """The tensor on `device`; on the CPU (None) at an aligned address: at others, kernels may round differently."""
    if device is not None:
        return tensor.pin_memory().to(device, non_blocking=True)  # else it would wait for all work of the device
    return tensor if tensor.data_ptr() % _alignment == 0 else tensor.clone()


def _aligned(offset):
    return -(-offset // _alignment) * _alignment
