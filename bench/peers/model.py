"""The model of ours.toml in PyTorch: a GPT whose computation is short compared with the delays."""

import torch
import torch.nn.functional as functional
from torch import nn

LAYERS = 4
HIDDEN = 16
HEADS = 2
CONTEXT = 16
VOCABULARY = 256
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

    def __init__(self, index: int, parts: int) -> None:
        super().__init__()
        self.is_first = index == 0
        self.is_last = index == parts - 1
        if self.is_first:
            self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.positions = nn.Parameter(torch.randn(CONTEXT, HIDDEN) * 0.02)
        halves = [half() for _ in range(LAYERS) for half in (Attention, FeedForward)]
        share = len(halves) // parts
        self.halves = nn.Sequential(*halves[index * share : (index + 1) * share])
        if self.is_last:
            self.head_norm = nn.LayerNorm(HIDDEN)
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.is_first:
            x = self.tokens(x) + self.positions
        x = self.halves(x)
        return self.head(self.head_norm(x)) if self.is_last else x


def loss_of(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def batch(microbatches: int) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(VOCABULARY, (microbatches, CONTEXT + 1))
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
