#!/usr/bin/env python3
"""What the runtime adds to Python's own time: four stages in one process whose forwards hold the GIL.

    PYTHONPATH=build/release/python .venv/bin/python bench/python_overhead.py [MS [STEPS]]

A forward is a loop of MS milliseconds (2) in Python. Beside each other: these loops alone on one thread, a plain
loop over the microbatches, and the pipeline; medians over STEPS (20), in turns.
"""

import statistics
import sys
import time

import rrfp
import torch

STAGES, MICROBATCHES = 4, 16


class Busy(torch.nn.Module):
    def __init__(self, ms):
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)
        self.seconds = ms / 1e3

    def compute(self):
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass

    def forward(self, x):
        self.compute()
        return self.linear(x)


def main():
    ms = float(sys.argv[1]) if len(sys.argv) > 1 else 2.0
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    torch.set_num_threads(1)
    loss_fn = torch.nn.functional.mse_loss
    sgd = lambda parameters: torch.optim.SGD(parameters, 1e-3)
    x = torch.randn(4 * MICROBATCHES, 16)
    plain = torch.nn.Sequential(*[Busy(ms) for _ in range(STAGES)])
    optimizer = sgd(plain.parameters())

    def plain_step():
        for inputs, target in zip(x.tensor_split(MICROBATCHES), x.tensor_split(MICROBATCHES)):
            (loss_fn(plain(inputs), target) / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    def python_alone():
        for _ in range(MICROBATCHES):
            for stage in plain:
                stage.compute()

    times = {"Python alone": [], "plain loop": [], "pipeline": []}
    with rrfp.Pipeline([Busy(ms) for _ in range(STAGES)], loss_fn, MICROBATCHES, optimizer=sgd) as pipe:
        for _ in range(steps):
            for name, step in zip(times, (python_alone, plain_step, lambda: pipe.step(x, target=x))):
                begin = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - begin) * 1e3)
    alone = statistics.median(times["Python alone"])
    for name, all_ms in times.items():
        middle = statistics.median(all_ms)
        print(f"{name:<14} {middle:8.1f} ms  {middle / alone:.3f} of Python alone")


if __name__ == "__main__":
    main()
