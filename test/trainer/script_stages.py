"""Saves the parts of a small model as TorchScript, one file a stage: script_stages.py OUT"""

import sys

import torch


class Part(torch.nn.Module):
    def __init__(self, number: int, is_last: bool):
        super().__init__()
        torch.manual_seed(number)
        self.layer = torch.nn.Linear(16, 16)
        self.dropout = torch.nn.Dropout(0.0)
        self.is_last = is_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(torch.tanh(self.layer(x)))
        if self.is_last:
            return y
        return x + y


class Pair(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x


torch.jit.save(torch.jit.script(Pair()), f"{sys.argv[1]}/pair.pt")
for n in range(2):
    torch.jit.save(torch.jit.script(Part(n, n == 1)), f"{sys.argv[1]}/stage{n}.pt")
