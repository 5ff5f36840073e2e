#!/usr/bin/env python3
"""What the runtime adds to Python's own time.

    PYTHONPATH=build/release/python .venv/bin/python bench/python_overhead.py [MS [STEPS]]
    PYTHONPATH=build/release/python .venv/bin/python bench/python_overhead.py tasks [PROCESSES [STEPS]]

The first one has four stages in one process whose forwards hold the GIL. A forward is a loop of MS milliseconds (2) in
Python. Beside each other: these loops alone on one thread, a plain loop over the microbatches, and the pipeline; medians
over STEPS (20), in turns.

The second one, in half a minute, prints the time of framework a task: PROCESSES (2) of one stage each, which multiplies
by a number, run STEPS (50) steps of rrfp.Pipeline and of rrfp.torch.ReadySchedule in turns. Medians of the time of a step,
and of the processor time of all threads of the first process, over the forwards and backwards of a stage. Beside them the
operators alone: a loop over the microbatches of one stage with loss and backward.
"""

import os
import socket
import statistics
import sys
import tempfile
import time

import rrfp
import torch

STAGES, MICROBATCHES = 4, 16
mse_loss = torch.nn.functional.mse_loss
sgd = lambda parameters: torch.optim.SGD(parameters, 1e-3)


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


class Scale(torch.nn.Module):
    def __init__(self, *_):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x):
        return x * self.scale


def busy(ms, steps):
    x = torch.randn(4 * MICROBATCHES, 16)
    plain = torch.nn.Sequential(*[Busy(ms) for _ in range(STAGES)])
    optimizer = sgd(plain.parameters())

    def plain_step():
        for inputs, target in zip(x.tensor_split(MICROBATCHES), x.tensor_split(MICROBATCHES)):
            (mse_loss(plain(inputs), target) / MICROBATCHES).backward()
        optimizer.step()
        optimizer.zero_grad()

    def python_alone():
        for _ in range(MICROBATCHES):
            for stage in plain:
                stage.compute()

    times = {"Python alone": [], "plain loop": [], "pipeline": []}
    with rrfp.Pipeline([Busy(ms) for _ in range(STAGES)], mse_loss, MICROBATCHES, optimizer=sgd) as pipe:
        for _ in range(steps):
            for name, step in zip(times, (python_alone, plain_step, lambda: pipe.step(x, target=x))):
                begin = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - begin) * 1e3)
    alone = statistics.median(times["Python alone"])
    for name, all_ms in times.items():
        middle = statistics.median(all_ms)
        print(f"{name:<14} {middle:8.1f} ms  {middle / alone:.3f} of Python alone")


def tasks(rank, processes, steps, port, store):
    """One process of `processes`."""
    from torch import distributed
    from torch.distributed.pipelining import PipelineStage

    from rrfp.torch import ReadySchedule

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    distributed.init_process_group("gloo", f"file://{store}", rank=rank, world_size=processes)
    microbatches = [torch.randn(1, 16) for _ in range(MICROBATCHES)]
    is_first, is_last = rank == 0, rank == processes - 1
    arguments = [(x,) for x in microbatches] if is_first else None
    targets = microbatches if is_last else None
    stage = PipelineStage(Scale(), rank, processes, torch.device("cpu"))
    ready = ReadySchedule(stage, MICROBATCHES, loss_fn=mse_loss)
    alone = Scale()

    def operators():
        for x in microbatches:
            mse_loss(alone(x), x).backward()

    with rrfp.Pipeline(Scale, mse_loss, MICROBATCHES, n_stages=processes, optimizer=sgd) as pipe:
        ways = {
            "operators alone": operators,
            "rrfp.Pipeline": lambda: pipe.step_microbatches(arguments, target_mbs=targets, return_outputs=False),
            "ReadySchedule": lambda: ready.step(
                arg_mbs=arguments, kwarg_mbs=[{}] * MICROBATCHES, target_mbs=targets, return_outputs=False
            ),
        }
        times = {name: [] for name in ways}
        for _ in range(steps):
            for name, step in ways.items():
                distributed.barrier()
                begin, cpu = time.perf_counter(), time.process_time()
                step()
                us = [(end - start) * 1e6 / (2 * MICROBATCHES) for start, end in
                      ((begin, time.perf_counter()), (cpu, time.process_time()))]
                times[name].append(us)
        ready.close()
    if is_first:
        print(f"us a task, {processes} processes: {'step':>7} {'processor':>10}")
        for name, all_us in times.items():
            step, cpu = map(statistics.median, zip(*all_us))
            print(f"{name:<26} {step:7.0f} {cpu:10.0f}")
    distributed.barrier()
    distributed.destroy_process_group()


def main():
    torch.set_num_threads(1)
    arguments = sys.argv[1:]
    if arguments[:1] == ["tasks"]:
        processes, steps = map(int, (arguments[1:] + ["2", "50"][len(arguments) - 1 :])[:2])
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            torch.multiprocessing.spawn(tasks, (processes, steps, port, f"{folder}/store"), nprocs=processes)
    else:
        ms, steps = (arguments + ["2", "20"][len(arguments) :])[:2]
        busy(float(ms), int(steps))


if __name__ == "__main__":
    main()
