"""What a stage gives to its neighbour, as the one buffer that travels between them.

A contiguous tensor of a type that DLPack knows travels as it is. Everything else is packed into bytes:
8 bytes with the length of a JSON text, the text, and the tensors, each at a multiple of 64 bytes.
"""

import json
import math

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
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


def encode(value):
    """The capsule of a tensor, or of a tuple or list of tensors, numbers, texts and None."""
    if type(value) is torch.Tensor and value.dtype in _plain:
        return to_dlpack(value.detach().contiguous())
    is_one = not isinstance(value, (tuple, list))
    tensors, leaves = [], []
    for leaf in [value] if is_one else value:
        leaves.append(_described(leaf, tensors))
    head = json.dumps([is_one, leaves]).encode()
    begin = _aligned(8 + len(head))
    end = begin
    for tensor in tensors:
        end = _aligned(end) + tensor.numel() * tensor.element_size()
    packed = torch.empty(end, dtype=torch.uint8)
    packed[:8] = torch.frombuffer(bytearray(len(head).to_bytes(8, "little")), dtype=torch.uint8)
    packed[8 : 8 + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
    at = begin
    for tensor in tensors:
        size = tensor.numel() * tensor.element_size()
        at = _aligned(at)
        packed[at : at + size].view(tensor.dtype).view(tensor.shape).copy_(tensor)
        at += size
    return to_dlpack(packed)


def decode(capsule, mesh_of=None):
    """What encode() was given; tensors are views of the message. `mesh_of(names)`: the device mesh of this process
    with those dimensions, for the DTensors."""
    message = from_dlpack(capsule)
    if message.dtype != torch.uint8:
        return _on_boundary(message)
    length = int.from_bytes(bytes(message[:8].tolist()), "little")
    is_one, leaves = json.loads(bytes(message[8 : 8 + length].tolist()))
    at = _aligned(8 + length)
    values = []
    for leaf in leaves:
        if not isinstance(leaf, dict):
            values.append(leaf)
            continue
        dtype = getattr(torch, leaf["dtype"])
        at = _aligned(at)
        size = math.prod(leaf["shape"]) * dtype.itemsize
        local = _on_boundary(message[at : at + size].view(dtype).view(leaf["shape"]))
        at += size
        values.append(local if "mesh" not in leaf else _distributed(local, leaf, mesh_of))
    return values[0] if is_one else tuple(values)


def _described(leaf, tensors):
    if isinstance(leaf, DTensor):
        local = leaf.to_local()
        names = leaf.device_mesh.mesh_dim_names
        if names is None:
            raise TypeError("between stages: expected a DTensor whose device mesh names its dimensions")
        return {
            **_described(local, tensors),
            "mesh": list(names),
            "placements": [_text_of(p) for p in leaf.placements],
            "whole": [list(leaf.shape), list(leaf.stride())],
        }
    if isinstance(leaf, torch.Tensor):
        if type(leaf) not in (torch.Tensor, torch.nn.Parameter) or leaf.layout != torch.strided:
            raise TypeError(f"between stages: expected plain tensors, got {type(leaf).__name__} {leaf.layout}")
        tensors.append(leaf.detach())
        return {"dtype": str(leaf.dtype).removeprefix("torch."), "shape": list(leaf.shape)}
    if leaf is None or isinstance(leaf, (bool, int, float, str)):
        return leaf
    raise TypeError(f"between stages: expected tensors, numbers, texts or None, got {type(leaf).__name__}")


def _distributed(local, leaf, mesh_of):
    shape, stride = leaf["whole"]
    return DTensor.from_local(
        local,
        mesh_of(tuple(leaf["mesh"])),
        [_placement_of(text) for text in leaf["placements"]],
        run_check=False,
        shape=torch.Size(shape),
        stride=tuple(stride),
    )


def _text_of(placement):
    if isinstance(placement, Shard) and type(placement) is Shard:
        return f"S{placement.dim}"
    if isinstance(placement, Replicate):
        return "R"
    if isinstance(placement, Partial) and placement.reduce_op == "sum":
        return "P"
    raise TypeError(f"between stages: expected a DTensor that is sharded, replicated or partial, got {placement}")


def _placement_of(text):
    return Replicate() if text == "R" else Partial() if text == "P" else Shard(int(text[1:]))


def _on_boundary(tensor):
    """Kernels may round differently at other addresses."""
    return tensor if tensor.data_ptr() % _alignment == 0 else tensor.clone()


def _aligned(offset):
    return -(-offset // _alignment) * _alignment
