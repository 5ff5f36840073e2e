"""What a stage gives to the next one, as the one tensor that travels between them.

A float32 tensor travels as it is. Anything else (a tuple, a dict, None, masks,
token ids, half-precision tensors) is packed into one float32 vector, which autograd passes through: the
layout as text, then each tensor at a multiple of 64 bytes. A packed vector has PACKED_DIM dimensions, and
a tensor with as many is packed itself, so the receiver can tell them apart.
"""

import json

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

PACKED_DIM = 8
WORDS = 16  # float32 values in 64 bytes
WIDENED = {torch.float32, torch.bfloat16, torch.float16}  # exact in float32


def pack(value):
    """Returns the tensor that travels. Raises TypeError for what cannot."""
    if (
        isinstance(value, torch.Tensor)
        and value.dtype == torch.float32
        and value.dim() != PACKED_DIM
    ):
        return value
    leaves, spec = tree_flatten(value)
    layout, parts = [], []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            is_wide = leaf.dtype in WIDENED
            if leaf.requires_grad and not is_wide:
                raise TypeError(
                    "between stages: expected a float32, bfloat16 or float16 tensor where a gradient is "
                    f"required, got {leaf.dtype}"
                )
            words = leaf.float().reshape(-1) if is_wide else words_of(leaf)
            # F of a recomputed stage does not know which; a text of the same length either way.
            has_gradient = int(leaf.requires_grad or (is_wide and not torch.is_grad_enabled()))
            layout.append([str(leaf.dtype)[6:], list(leaf.shape), words.numel(), has_gradient])
            parts.append(padded(words))
        elif leaf is None or isinstance(leaf, (bool, int, float, str)):
            layout.append([None, leaf])
        else:
            raise TypeError(
                f"between stages: expected tensors, numbers, texts or None, got {type(leaf).__name__}"
            )
    text = json.dumps([treespec_dumps(spec), layout]).encode()
    head = words_of(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    size = words_of(torch.tensor([len(text)]))
    return torch.cat([padded(size), padded(head), *parts]).view([1] * (PACKED_DIM - 1) + [-1])


def unpack(message):
    """What pack() was given; the tensors are views of the message."""
    if message.dim() != PACKED_DIM:
        return message
    words = message.view(-1)
    plain = words.detach()
    size = int(plain[:2].view(torch.int64)[0])
    end = WORDS + padded_count((size + 3) // 4)
    spec, layout = json.loads(bytes(plain[WORDS:end].view(torch.uint8)[:size].tolist()))
    leaves = []
    for kind, *about in layout:
        if kind is None:
            leaves.append(about[0])
            continue
        shape, count, has_gradient = about
        dtype = getattr(torch, kind)
        if dtype in WIDENED:
            leaf = (words if has_gradient else plain)[end : end + count].view(shape).to(dtype)
        else:
            size = torch.Size(shape).numel() * dtype.itemsize
            leaf = plain[end : end + count].view(torch.uint8)[:size].view(dtype).view(shape)
        leaves.append(leaf)
        end += padded_count(count)
    return tree_unflatten(leaves, treespec_loads(spec))


def words_of(tensor):
    """The bytes of a tensor as float32 values, unchanged."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return torch.nn.functional.pad(data, (0, -data.numel() % 4)).view(torch.float32)


def padded_count(count):
    return count + -count % WORDS


def padded(words):
    return torch.nn.functional.pad(words, (0, -words.numel() % WORDS))
