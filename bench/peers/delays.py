"""The delays of a row, task by task, in CSV files that every system reads.

A forward takes 10 ms and a backward 20 ms, each times a random factor of mean 1. A backward that is
split takes half of its time for B and half for W: the split does not change the work.
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
# Of the rows "images": the average microbatch, and how many times as large one may be.
TOKENS = 16
IMAGES = 4
LARGEST = 3

SIGMAS = {"s0": 0.0, "s0.3": 0.3, "s0.6": 0.6, "spikes": 0.3}
TITLES = {
    "none": "no delays", "empty": "empty model", "s0": "sigma 0", "s0.3": "sigma 0.3", "s0.6": "sigma 0.6",
    "spikes": "spikes", "pareto": "Pareto", "images": "images",
}


@dataclasses.dataclass(frozen=True)
class Row:
    microbatches: int
    kind: str  # a key of TITLES

    @property
    def name(self) -> str:
        return f"m{self.microbatches}-{self.kind}"

    @property
    def title(self) -> str:
        return TITLES[self.kind]

    @property
    def has_delays(self) -> bool:
        return self.kind not in ("none", "empty")

    @property
    def is_random(self) -> bool:
        return self.has_delays and self.kind != "s0"

    def random(self) -> random.Random:
        return random.Random(f"{SEED} {self.name}")


ROWS = [Row(m, kind) for m in (8, 16) for kind in TITLES if (m, kind) != (8, "images")]


def row_of(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def factors(row: Row):
    """Draws factors of mean 1."""
    numbers = row.random()
    sigma = SIGMAS.get(row.kind, 0.0)

    def factor() -> float:
        if row.kind == "pareto":
            return numbers.paretovariate(1.5) / 3
        drawn = math.exp(sigma * numbers.gauss(0, 1) - sigma * sigma / 2)
        if row.kind == "spikes":
            drawn *= (10 if numbers.random() < 0.01 else 1) / 1.09
        return drawn

    return factor


def sizes_of(row: Row) -> list[list[tuple[int, int]]]:
    """Of the rows "images", by step and microbatch: the numbers of tokens and of images."""
    numbers = row.random()

    def size(mean: int, sigma: float, least: int) -> int:
        drawn = mean * math.exp(sigma * numbers.gauss(0, 1) - sigma * sigma / 2)
        return round(min(max(least, drawn), LARGEST * mean))

    return [[(size(TOKENS, 0.3, 2), size(IMAGES, 0.8, 1)) for _ in range(row.microbatches)] for _ in range(DRAWS)]


def largest(row: Row) -> tuple[int, int]:
    """The sizes to which everything must be padded where shapes are fixed."""
    tokens, images = zip(*(size for step in sizes_of(row) for size in step))
    return max(tokens), max(images)


def write(row: Row, file: pathlib.Path, chunks: int = 1, padded: bool = False) -> None:
    """`chunks`: of a stage, which share its delays evenly. `padded`: every microbatch takes as long as the largest."""
    factor = factors(row)
    sizes = sizes_of(row) if row.kind == "images" else None
    lines = ["step,stage,chunk,mb,kind,ms"]
    for step in range(DRAWS if row.has_delays else 0):
        for stage in range(STAGES):
            for mb in range(row.microbatches):
                if sizes is None:
                    forward, backward = FORWARD_MS * factor(), BACKWARD_MS * factor()
                else:  # the encoder is on stage 0
                    tokens, images = largest(row) if padded else sizes[step][mb]
                    share = images / IMAGES if stage == 0 else tokens / TOKENS
                    forward, backward = FORWARD_MS * share, BACKWARD_MS * share
                for chunk in range(chunks):
                    for kind, ms in (("F", forward), ("B", backward / 2), ("W", backward / 2)):
                        lines.append(f"{step + 1},{stage},{chunk},{mb},{kind},{ms / chunks:.6f}")
    file.write_text("\n".join(lines) + "\n")


class Delays:
    """Milliseconds by (step, stage, mb, kind), steps from 0, kind F, B or W; 0 if not listed."""

    def __init__(self, file: pathlib.Path):
        self.ms: dict[tuple[int, int, int, str], float] = {}
        with file.open(newline="") as lines:
            for line in csv.DictReader(lines):
                key = (int(line["step"]) - 1, int(line["stage"]), int(line["mb"]), line["kind"])
                self.ms[key] = self.ms.get(key, 0.0) + float(line["ms"])
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
