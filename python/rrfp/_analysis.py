"""Recorded runs of any framework, and what readiness would have made of them."""

import glob
import os
from collections.abc import Iterable

from . import _runtime
from ._errors import Error


class Analysis:
    """The result of analyze(): lists of dicts that you can pass to pandas.DataFrame. Times are in milliseconds.

    `tasks`: run, step, replica, stage, rank, kind, microbatch, chunk, begin_ms, end_ms, slots.
    `waits`: the same for the task that was waited for, and `cause`: input, in_order (another task was ready) or memory.
    `steps`: run, step, measured_ms, replayed_ms, error_percent.
    `forecast`: run, policy, mode, slots, step_ms, bubble, gain_percent, assumes_split.
    `notes`: what the analysis found, how, and what it could not find. `sentence`: the result in one sentence.
    """

    def __init__(self, found):
        self._found = found
        self.tasks, self.waits = found.tasks(), found.waits()
        self.steps, self.forecast = found.steps(), found.forecast()
        self.notes, self.sentence = found.notes(), " ".join(found.sentences())

    def report(self, path, title="rrfp report"):
        """Writes the page of rrfp-report: timelines, idle time by cause, the critical path."""
        self._found.write_page(os.fspath(path), title)

    def _repr_html_(self):
        """What a notebook shows: the forecast as bars."""
        return "".join(self._found.charts())

    def __repr__(self):
        return f"<rrfp.Analysis: {len(self.steps)} steps, {len(self.tasks)} tasks. {self.sentence}>"


def analyze(traces, *, backward_share=0.5, stages=0, microbatches=0):
    """Reads the traces of a run and forecasts other schedules from its times. Needs neither torch nor a GPU.

    traces: a path, a pattern such as "traces/*.json.gz", or a list of these: traces of torch.profiler, one per rank;
        tables of Nsight Systems; logs with timers; traces of rrfp itself; or CSV (docs/analyze.md).
    backward_share: the share of a backward that counts as B if the run did not split it.
    stages, microbatches: needed for logs that do not state them.
    """
    files = []
    is_path = lambda one: isinstance(one, (str, os.PathLike))
    given = [traces] if is_path(traces) else list(traces) if isinstance(traces, Iterable) else [traces]
    if not all(map(is_path, given)):
        raise TypeError(f"traces: expected a path, or a list of paths, got {traces!r}")
    for one in map(os.fspath, given):
        found = [one] if os.path.exists(one) else sorted(glob.glob(one))
        if not found:
            raise Error(f"analyze(): expected a file or a pattern of files, got {one!r}", "bad_input", 2)
        files += found
    if not files:
        raise Error("analyze(): expected a file at least, got none", "bad_input", 2)
    if not isinstance(backward_share, (int, float)) or not 0 <= backward_share <= 1:
        raise ValueError(f"backward_share: expected a number from 0 to 1, got {backward_share!r}")
    for name, value in (("stages", stages), ("microbatches", microbatches)):
        if type(value) is not int or not 0 <= value < 2**32:
            raise ValueError(f"{name}: expected a number, 0 if the traces say it, got {value!r}")
    return Analysis(_runtime.Analysis(files, stages, microbatches, backward_share))
