"""The model of ours.toml in PyTorch: a GPT whose computation is short compared with the delays. The rows "images"
put an image encoder before it, and the rows "empty" have a model that computes next to nothing."""

import torch
import torch.nn.functional as functional
from torch import nn

from delays import DRAWS, Row, largest, sizes_of

LAYERS = 4
HIDDEN = 16
HEADS = 2
CONTEXT = 16
CONTEXT_MAX = 256
VOCABULARY = 256
PIXELS = 48
IGNORED = -100  # a target without loss
LEARNING_RATE = 1e-3


class Attention(nn.Module):
    """The first half of a layer: pre-norm, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.qkv = nn.Linear(HIDDEN, 3 * HIDDEN)
        self.project = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(part: torch.Tensor) -> torch.Tensor:
            return part.view(x.shape[0], x.shape[1], HEADS, HIDDEN // HEADS).transpose(1, 2)

        q, k, v = (heads(part) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.project(mixed.transpose(1, 2).reshape(x.shape))


class FeedForward(nn.Module):
    """The second half."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Part(nn.Module):
    """A virtual stage of 4 or 8: a layer or half of one; the embedding or the head at the ends."""

    def __init__(self, index: int, parts: int, with_images: bool = False) -> None:
        super().__init__()
        self.is_first = index == 0
        self.is_last = index == parts - 1
        if self.is_first:
            self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.positions = nn.Parameter(torch.randn(CONTEXT_MAX, HIDDEN) * 0.02)
            if with_images:
                self.encoder = nn.Sequential(nn.Linear(PIXELS, HIDDEN), FeedForward())
        halves = [half() for _ in range(LAYERS) for half in (Attention, FeedForward)]
        share = len(halves) // parts
        self.halves = nn.Sequential(*halves[index * share : (index + 1) * share])
        if self.is_last:
            self.head_norm = nn.LayerNorm(HIDDEN)
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor, images: torch.Tensor | None = None) -> torch.Tensor:
        if self.is_first:
            x = self.tokens(x)
            if images is not None:
                x = torch.cat([self.encoder(images), x], 1)
            x = x + self.positions[: x.shape[1]]
        x = self.halves(x)
        return self.head(self.head_norm(x)) if self.is_last else x


class Empty(nn.Module):
    """Multiplies by a number."""

    def __init__(self, index: int, parts: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


def part_of(row: Row, index: int, parts: int) -> nn.Module:
    return Empty(index, parts) if row.kind == "empty" else Part(index, parts, row.kind == "images")


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = logits[:, -targets.shape[1] :]  # without the positions of images
    if logits.is_floating_point() and targets.is_floating_point():
        return functional.mse_loss(logits, targets)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


Microbatch = tuple[tuple[torch.Tensor, ...], torch.Tensor]


def batches(row: Row) -> list[list[Microbatch]]:
    """The arguments and the target of each microbatch, for each step of the file of delays."""
    if row.kind == "empty":
        x = torch.randn(1, CONTEXT)
        return [[((x,), x)] * row.microbatches] * DRAWS
    if row.kind == "images":
        return [[image_microbatch(*size) for size in step] for step in sizes_of(row)]
    return [[text_microbatch(CONTEXT) for _ in range(row.microbatches)]] * DRAWS


def text_microbatch(length: int) -> Microbatch:
    tokens = torch.randint(VOCABULARY, (1, length + 1))
    return (tokens[:, :-1].contiguous(),), tokens[:, 1:].contiguous()


def image_microbatch(length: int, images: int) -> Microbatch:
    (tokens,), targets = text_microbatch(length)
    return (tokens, torch.randn(1, images, PIXELS)), targets


def padded(row: Row, microbatches: list[Microbatch]) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """All microbatches as rows of one batch; in the rows "images" they are padded to the largest of all steps."""
    arguments, targets = zip(*microbatches)
    if row.kind == "images":
        length, images = largest(row)
        arguments = [
            (functional.pad(t, (0, length - t.shape[1])), functional.pad(i, (0, 0, 0, images - i.shape[1])))
            for t, i in arguments
        ]
        targets = [functional.pad(t, (0, length - t.shape[1]), value=IGNORED) for t in targets]
    return tuple(torch.cat(values) for values in zip(*arguments)), torch.cat(targets)
