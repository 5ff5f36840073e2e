"""Jobs in virtual time."""

import dataclasses
import os
import statistics

from . import _runtime
from ._settings import called, check_settings


@dataclasses.dataclass(frozen=True)
class Simulation:
    """The result of simulate(): lists of dicts that you can pass to pandas.DataFrame. Times are in milliseconds.

    A job with variants has rows for each, named by `run`.
    """

    steps: list  #: run, step, ms, and lower_bound_ms, below which no schedule of these tasks can be
    stages: list  #: run, stage, busy_ms, the idle time by its cause, and peak_slots; sums over the steps
    tasks: list  #: run, step, stage, kind, microbatch, chunk, begin_ms, end_ms; times since step 1 began

    def ms(self, run=None):
        """Returns the median time of a step."""
        return statistics.median(row["ms"] for row in self.steps if run in (None, row["run"]))


def simulate(job=None, *, settings=None, steps=1):
    """Simulates a job with the runtime's scheduling code. Nothing is computed, and torch is not needed.

    job: the path of a job file, or None to use only the settings.
    settings: keys of a job (docs/job-reference.md), for example {"pipeline.stages": 8, "pipeline.microbatches": 32,
        "dispatch.policy": "bfw", "jitter.compute": "lognormal"}.
    """
    if job is not None and not isinstance(job, (str, os.PathLike)):
        raise TypeError(f"job: expected a path, got {type(job).__name__}")
    path = None if job is None else os.fspath(job)
    if isinstance(steps, bool) or not isinstance(steps, int) or not 1 <= steps <= 1_000_000:
        raise ValueError(f"steps: expected an integer from 1 to 1000000, got {steps!r}")
    check_settings(settings)
    return Simulation(**called(lambda lines: _runtime.simulate(path, lines, steps), settings or {}))
