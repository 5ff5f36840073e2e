"""The model of gpt350m.toml in an ordinary PyTorch loop: the same computation.

    plain_loop.py STEPS [--deterministic]

Weights are float32 and cast where they are used, activations bfloat16, the loss float32; the gradient of
a step is the mean over its tokens; it is clipped and passed to AdamW. Prints one line of JSON per step.
"""

import argparse
import json
import os
import time

import torch
import torch.nn.functional as functional
from torch import nn

LAYERS, HIDDEN, HEADS, CONTEXT, VOCABULARY = 24, 1024, 16, 1024, 50304
MICROBATCHES, SEQUENCES = 8, 4


def linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    return functional.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))


def norm(x: torch.Tensor, layer: nn.LayerNorm) -> torch.Tensor:
    return functional.layer_norm(x, (HIDDEN,), layer.weight.to(x.dtype), layer.bias.to(x.dtype), layer.eps)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(4 * HIDDEN, HIDDEN)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def heads(part: torch.Tensor) -> torch.Tensor:
            return part.view(SEQUENCES, CONTEXT, HEADS, HIDDEN // HEADS).transpose(1, 2)

        q, k, v = (heads(part) for part in linear(norm(x, self.norm_1), self.qkv).chunk(3, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(mixed.transpose(1, 2).reshape(x.shape), self.out)
        return x + linear(functional.gelu(linear(norm(x, self.norm_2), self.up), approximate="tanh"), self.down)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(VOCABULARY, HIDDEN) * 0.02)
        self.positions = nn.Parameter(torch.randn(CONTEXT, HIDDEN) * 0.02)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(CONTEXT, device=ids.device).repeat(SEQUENCES)
        x = functional.embedding(ids, self.tokens).bfloat16() + functional.embedding(places, self.positions).bfloat16()
        for layer in self.layers:
            x = layer(x)
        logits = functional.linear(norm(x, self.norm), self.tokens.to(x.dtype)).float()
        return functional.cross_entropy(logits, targets, reduction="sum")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    arguments.add_argument("steps", type=int)
    arguments.add_argument("--deterministic", action="store_true")
    options = arguments.parse_args()
    if options.deterministic:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    torch.manual_seed(0)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = MICROBATCHES * SEQUENCES * CONTEXT
    for step in range(options.steps):
        ids = torch.randint(256, (MICROBATCHES, SEQUENCES * CONTEXT + 1))
        begun = time.perf_counter()
        total = torch.zeros((), device="cuda")
        for mb in ids:
            on_gpu = mb.pin_memory().cuda(non_blocking=True)
            loss = model(on_gpu[:-1], on_gpu[1:])
            (loss / tokens).backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = total.item() / tokens
        seconds = time.perf_counter() - begun
        print(json.dumps({"step": step, "loss": mean, "tokens_per_s": tokens / seconds}), flush=True)


if __name__ == "__main__":
    main()
