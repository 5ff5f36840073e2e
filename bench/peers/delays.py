"""The delays of a row, task by task, in a CSV file that every system reads.

A forward takes 10 ms and a backward 20 ms, each times a log-normal factor of mean 1. A backward
that is split takes half of its time for B and half for W: the split does not change the work.
"""

import csv
import dataclasses
import math
import pathlib
import random

STAGES = 4
FORWARD_MS = 10.0
BACKWARD_MS = 20.0
SEED = 20260518
# Number of steps in a file, each drawn independently. They repeat.
DRAWS = 3


@dataclasses.dataclass(frozen=True)
class Row:
    microbatches: int
    sigma: float | None  # None: no delays at all

    @property
    def name(self) -> str:
        return f"m{self.microbatches}-" + ("none" if self.sigma is None else f"s{self.sigma:g}")

    @property
    def title(self) -> str:
        return "no delays" if self.sigma is None else f"sigma {self.sigma:g}"


class Delays:
    """Milliseconds by (step, stage, mb, kind), steps from 0, kind F, B or W; 0 if not listed."""

    def __init__(self, file: pathlib.Path):
        self.ms: dict[tuple[int, int, int, str], float] = {}
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                key = (int(line["step"]) - 1, int(line["stage"]), int(line["mb"]), line["kind"])
                self.ms[key] = float(line["ms"])
        self.steps = 1 + max((key[0] for key in self.ms), default=0)

    def ms_of(self, step: int, stage: int, mb: int, kind: str) -> float:
        """The delay of a task. The steps of the file repeat, as with the key jitter.delays."""
        return self.ms.get((step % self.steps, stage, mb, kind), 0.0)

    def busiest_ms(self) -> list[float]:
        """For each step: the sum of the delays of the rank with the largest sum."""
        sums = [[0.0] * STAGES for _ in range(self.steps)]
        for (step, stage, _, _), ms in self.ms.items():
            sums[step][stage] += ms
        return [max(stage_sums) for stage_sums in sums]


def write(row: Row, file: pathlib.Path) -> None:
    random_numbers = random.Random(f"{SEED} {row.name}")

    def factor() -> float:
        sigma = row.sigma or 0.0
        return math.exp(sigma * random_numbers.gauss(0, 1) - sigma * sigma / 2)

    lines = ["step,stage,chunk,mb,kind,ms"]
    for step in range(DRAWS if row.sigma is not None else 0):
        for stage in range(STAGES):
            for mb in range(row.microbatches):
                forward = FORWARD_MS * factor()
                half = BACKWARD_MS * factor() / 2
                for kind, ms in (("F", forward), ("B", half), ("W", half)):
                    lines.append(f"{step + 1},{stage},0,{mb},{kind},{ms:.6f}")
    file.write_text("\n".join(lines) + "\n")
