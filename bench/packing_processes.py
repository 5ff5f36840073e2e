"""What packing by cost and readiness give together in four real processes, for samples of different lengths.

usage: PYTHONPATH=build/release/python .venv/bin/python bench/packing_processes.py [--json]

Starts four processes of torchrun for each placement: 4 stages, and 2 stages x 2 replicas. Tasks of a microbatch sleep as
long as its samples cost (linear and attention FLOPs), times a log-normal factor of sigma 0.237, the spread that the paper
measured. Every packing has the same samples and the same most tokens in a microbatch; no process holds
more microbatches than the first one of 1F1B. The figures are times of all steps divided by those of `tokens` in order.

  tokens   in the order of the data until a microbatch is full
  cost     rrfp.pack()
"""

import json
import math
import os
import pathlib
import random
import subprocess
import sys
import time

PROCESSES, STEPS, MICROBATCHES = 4, 4, 16
TOKENS = 8192  # of a microbatch, at most
MEAN_MS = 45.0  # of F, B and W together, of a full microbatch of short samples on a stage
SIGMA = 0.237
PLACES = {"4 stages": 1, "2 stages x 2 replicas": 2}  # replicas
DATA = {
    "documents": lambda r: 150 * (1 - r.random()) ** (-1 / 1.05),
    "chats": lambda r: sum(60 * math.exp(1.1 * r.gauss(0, 1)) for _ in range(min(60, int((1 - r.random()) ** (-1 / 1.3))))),
}
WAYS = {
    "1F1B in order": {"dispatch.policy": "one_f_one_b", "dispatch.mode": "in-order"},
    "BFW+ ready": {"dispatch.policy": "bfw_plus"},
}


def cost_of(length):
    """Of a sample, in tokens: attention takes as long as the matrices at 4,096 tokens."""
    return length + length * length / 4096


def lengths_of(kind, tokens):
    draw = random.Random(f"packing {kind}")
    lengths = []
    while sum(lengths) < tokens:
        lengths.append(max(16, min(TOKENS, round(DATA[kind](draw)))))
    return lengths


def in_order(lengths, replicas):
    """Steps of replicas of microbatches, each as its cost."""
    steps, rest = [], list(lengths)
    while rest:
        taken, tokens = [], 0
        while rest and tokens + rest[0] <= replicas * MICROBATCHES * TOKENS * 0.9:
            tokens += rest[0]
            taken.append(rest.pop(0))
        made, room = [], 0
        for length in taken:
            if length > room:
                made.append(0.0)
                room = TOKENS
            room -= length
            made[-1] += cost_of(length)
        steps.append([made[replica::replicas] for replica in range(replicas)])
    return steps


def by_cost(lengths, replicas):
    import rrfp

    packing = rrfp.pack(
        lengths,
        max_tokens=TOKENS,
        microbatches=MICROBATCHES,
        replicas=replicas,
        batch_tokens=int(replicas * MICROBATCHES * TOKENS * 0.9),
        cost=lambda length: cost_of(length),
        delay=4,
        shuffle=False,
    )
    return [[[sum(cost_of(lengths[i]) for i in mb) for mb in replica] for replica in step] for step in packing]


def worker(replicas):
    """One process: all systems, one after the other. The leading one prints their times."""
    import rrfp
    import torch

    torch.set_num_threads(1)
    stages = PROCESSES // replicas
    rank = int(os.environ["RANK"])

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, now, later):
            ctx.later = later
            time.sleep(now)
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(ctx.later)
            return gradient.clone(), None, None

    class Slow(torch.nn.Module):
        """The first column of its input is the cost of the microbatch, the second its number in the run."""

        def __init__(self, stage):
            super().__init__()
            self.stage = stage
            self.weight = torch.nn.Parameter(torch.eye(4))

        def forward(self, x):
            cost, number = x[0, 0].item(), int(x[0, 1].item())
            draw = random.Random(f"{self.stage} {number}")
            ms = [MEAN_MS / 3 * cost / TOKENS * draw.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) for _ in range(3)]
            weight = Sleep.apply(self.weight, 0, ms[2] / 1e3)
            y = torch.nn.functional.linear(Sleep.apply(x, ms[0] / 1e3, ms[1] / 1e3), weight)
            return torch.cat([x[:, :2].detach(), y[:, 2:]], 1)

    for kind in DATA:
        lengths = lengths_of(kind, STEPS * replicas * MICROBATCHES * TOKENS * 0.9)
        packings = {"tokens": in_order(lengths, replicas), "cost": by_cost(lengths, replicas)}
        for packing, steps in packings.items():
            for way, settings in WAYS.items():
                total = 0.0
                with rrfp.Pipeline(
                    Slow(rank % stages),
                    lambda output, target: output[:, 2:].sum(),
                    optimizer=lambda parameters: torch.optim.SGD(parameters, 0.0),
                    slots="p",
                    settings={**settings, "pipeline.replicas": replicas},
                    on_note=lambda line: None,
                ) as pipe:
                    number = 0
                    for step in steps:
                        rows = []
                        for cost in (cost for replica in step for cost in replica):
                            rows.append(torch.tensor([[cost, float(number), 1.0, 1.0]]))
                            number += 1
                        first, last = rank % stages == 0, rank % stages == stages - 1
                        counts = [len(replica) for replica in step]
                        pipe.step_microbatches(
                            rows if first else None,
                            target_mbs=rows if last else None,
                            return_outputs=False,
                            n_microbatches=counts if first or last else None,
                        )
                        total += pipe.last.ms
                if rank == 0:
                    print(json.dumps([kind, packing, way, total / 1e3]), flush=True)


def main():
    tables = {}
    for place, replicas in PLACES.items():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        done = subprocess.run([*command, __file__, "--worker", str(replicas)], stdout=subprocess.PIPE, text=True, check=True)
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        base = {kind: seconds for kind, packing, way, seconds in rows if (packing, way) == ("tokens", "1F1B in order")}
        tables[place] = [[kind, packing, way, seconds, base[kind] / seconds] for kind, packing, way, seconds in rows]
    if "--json" in sys.argv:
        return print(json.dumps(tables))
    for place, rows in tables.items():
        print(place)
        for kind, packing, way, seconds, speedup in rows:
            print(f"  {kind:10} {packing:7} {way:14} {seconds:7.2f} s {speedup:6.2f}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(int(sys.argv[sys.argv.index("--worker") + 1]))
    else:
        main()
