"""What packing by cost and readiness give together in four real processes, for samples of different lengths.

usage: PYTHONPATH=build/release/python .venv/bin/python bench/packing_processes.py [--json]

Starts four processes of torchrun for each placement: 4 stages, and 2 stages x 2 replicas. Lengths and room of a microbatch
are those of packing.bench.cpp, as are the costs of samples: FLOPs of Llama 3 8B. A task sleeps as long as its samples cost,
times a log-normal factor of sigma 0.237, and messages stall: both vary as the paper measured them. All ways of a packing
meet the same delays, and every packing has the same samples and the same most tokens in a microbatch. No process holds more
microbatches than the first one of 1F1B. Packings:

  tokens   in the order of the data until a microbatch is full; dealt out to the replicas in turn
  cost     rrfp.pack()

Ways:

  1F1B blocking   in order; send and receive are paired and waited for. torch.distributed.pipelining does so, but its
                  schedules take microbatches of one shape alone, and would have to pad them
  1F1B in order   messages do not block
  BFW+ ready      by readiness
  BFW+ sorted     the same, and the smallest microbatches are admitted at both ends of a step

A speed-up is the time of all steps of `tokens` with 1F1B blocking, divided by that of the row: the mean over the seeds, and
its standard deviation. Every step runs in two rounds, of which the quicker counts, because whatever else runs on the machine
makes it slower.
"""

import collections
import contextlib
import csv
import json
import math
import os
import pathlib
import random
import statistics
import subprocess
import sys
import time

PROCESSES, MICROBATCHES, SEEDS, ROUNDS = 4, 32, 2, 2
TOKENS_MAX = 32768
TASK_MS = 15.0  # of F, B and W each, of a full microbatch of short samples
LINK_MS = 0.06  # of a message without a stall, times the stages
SIGMA = 0.237
PLACES = {"4 stages": 1, "2 stages x 2 replicas": 2}  # replicas
WAYS = {
    "1F1B blocking": {"dispatch.policy": "one_f_one_b", "dispatch.mode": "in-order", "dispatch.messages": "blocking"},
    "1F1B in order": {"dispatch.policy": "one_f_one_b", "dispatch.mode": "in-order"},
    "BFW+ ready": {"dispatch.policy": "bfw_plus"},
    "BFW+ sorted": {"dispatch.policy": "bfw_plus"},
}


def kinds():
    """By kind: the tokens of its samples and the tiles of their images, from the shortest to the longest; the room."""
    kinds = collections.defaultdict(list)
    with open(pathlib.Path(__file__).with_name("lengths.csv")) as file:
        for row in csv.DictReader(file):
            kinds[row["kind"]].append((int(row["tokens"]), int(row["tiles"])))
    return {
        kind: (lengths, 2 ** math.ceil(math.log2(min(TOKENS_MAX, lengths[-1][0] + 256 * lengths[-1][1]))))
        for kind, lengths in kinds.items()
    }


def samples_of(kind, replicas, seed):
    """Tokens and tiles of the samples of a step."""
    lengths, room = kinds()[kind]
    draw = random.Random(f"{kind} {seed}")
    samples, left = [], replicas * MICROBATCHES * room * 0.9
    while True:
        place = draw.random() * (len(lengths) - 1)
        text, tiles = lengths[int(place)]
        if not tiles:
            text = round(text * (lengths[int(place) + 1][0] / text) ** (place % 1))
        text = max(16, min(text, room))
        tiles = min(tiles, (room - text) // 256)
        if text + 256 * tiles > left:
            return samples
        samples.append((text + 256 * tiles, tiles))
        left -= samples[-1][0]


def by_tokens(samples, costs, replicas, room):
    """Steps (here one) of replicas of microbatches, each as its cost."""
    made, space = [], 0
    for (tokens, _), cost in zip(samples, costs):
        if tokens > space:
            made.append(0.0)
            space = room
        space -= tokens
        made[-1] += cost
    return [[made[replica::replicas] for replica in range(replicas)]]


def by_cost(samples, costs, replicas, room):
    import rrfp

    return [
        step.costs
        for step in rrfp.pack(
            [tokens for tokens, _ in samples],
            max_tokens=room,
            microbatches=MICROBATCHES,
            replicas=replicas,
            cost=costs,
            shuffle=False,
        )
    ]


def worker(replicas):
    """One process: all rows, one after the other. The leading one prints their times."""
    import rrfp
    import torch

    torch.set_num_threads(1)
    # The runtime asks by the processor's time whether B and W together cost more than one backward. Sleep has none.
    time.thread_time_ns = lambda: 0
    stages = PROCESSES // replicas
    rank = int(os.environ["RANK"])
    first, last = rank % stages == 0, rank % stages == stages - 1
    vision = {"hidden": 3200, "layers": 45, "heads": 25, "feed_forward": 12800, "patches_per_token": 4}
    rrfp._runtime.begin_study()  # for sends that block
    llama = rrfp.CostModel.from_sizes(
        hidden=4096, layers=32, heads=32, kv_heads=8, feed_forward=14336, vocabulary=128256, vision=vision
    )

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
        """The first column of its input is the time of a task of the microbatch, the second its number in the run."""

        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.eye(4))

        def forward(self, x):
            seconds, number = x[0, 0].item(), int(x[0, 1].item())
            draw = random.Random(f"{rank} {number}")
            f, b, w = (seconds * draw.lognormvariate(-SIGMA * SIGMA / 2, SIGMA) for _ in range(3))
            # No gradient leaves the first stage, whose W computes all.
            weight = Sleep.apply(self.weight, 0, w + b if first else w)
            y = torch.nn.functional.linear(Sleep.apply(x, f, b), weight)
            return torch.cat([x[:, :2].detach(), y[:, 2:]], 1)

    def run(pipe, step, begun, costs):
        """`begun`: microbatches of the steps before."""
        seconds = [one for replica in step for one in replica]
        rows = [torch.tensor([[s, float(begun + i), 1.0, 1.0]]) for i, s in enumerate(seconds)]
        pipe.step_microbatches(
            rows if first else None,
            target_mbs=rows if last else None,
            return_outputs=False,
            n_microbatches=[len(replica) for replica in step] if first or last else None,
            costs=seconds if costs else None,
        )
        return pipe.last.ms / 1e3

    work = {}  # steps by kind, packing and seed
    for kind, (_, room) in kinds().items():
        full = llama(256) * room / 256
        for seed in range(SEEDS):
            samples = samples_of(kind, replicas, seed)
            costs = [llama(tokens, [1024] * tiles) / full * TASK_MS / 1e3 for tokens, tiles in samples]
            work[kind, "tokens", seed] = by_tokens(samples, costs, replicas, room)
            work[kind, "cost", seed] = by_cost(samples, costs, replicas, room)
    best = {}
    with contextlib.ExitStack() as opened:
        # All at once, so that whatever else runs on the machine meets all ways of a step.
        pipes = {}
        for way, settings in WAYS.items():
            pipe = rrfp.Pipeline(
                Slow(),
                lambda output, target: output[:, 2:].sum(),
                optimizer=lambda parameters: torch.optim.SGD(parameters, 0.0),
                n_microbatches=2 * MICROBATCHES,
                slots="p",
                settings={
                    **settings,
                    "pipeline.replicas": replicas,
                    "cost.link_ms": LINK_MS * stages,
                    "jitter.spread": "stalls",
                },
                on_note=lambda line: None,
            )
            pipes[way] = opened.enter_context(pipe)
            # Not counted: the runtime finds out how backward divides.
            run(pipe, [[1e-3] * 12] * replicas, 1 << 20, False)
        for _ in range(ROUNDS):
            for key, steps in work.items():
                begun = 0
                for i, step in enumerate(steps):
                    for way, pipe in pipes.items():
                        seconds = run(pipe, step, begun, way == "BFW+ sorted")
                        best[key, way, i] = min(seconds, best.get((key, way, i), math.inf))
                    begun += sum(map(len, step))
    if rank == 0:
        totals = collections.Counter()
        for (key, way, _), seconds in best.items():
            totals[key, way] += seconds
        print(json.dumps([[*key, way, seconds] for (key, way), seconds in totals.items()]), flush=True)


def main():
    tables = {}
    for place, replicas in PLACES.items():
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
        done = subprocess.run([*command, __file__, "--worker", str(replicas)], stdout=subprocess.PIPE, text=True, check=True)
        (rows,) = (json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
        seconds = {(kind, packing, way, seed): s for kind, packing, seed, way, s in rows}
        base = lambda kind, seed: seconds[kind, "tokens", "1F1B blocking", seed]
        tables[place] = []
        for kind, packing, way in dict.fromkeys(key[:3] for key in seconds):
            own = [seconds[kind, packing, way, seed] for seed in range(SEEDS)]
            gains = [base(kind, seed) / s for seed, s in enumerate(own)]
            tables[place].append([kind, packing, way, statistics.mean(own), statistics.mean(gains), statistics.stdev(gains)])
    if "--json" in sys.argv:
        return print(json.dumps(tables))
    for place, rows in tables.items():
        print(place)
        for kind, packing, way, seconds, gain, deviation in rows:
            print(f"  {kind:10} {packing:7} {way:14} {seconds:7.2f} s {gain:6.2f} ± {deviation:.2f}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        worker(int(sys.argv[sys.argv.index("--worker") + 1]))
    else:
        main()
