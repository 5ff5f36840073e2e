"""How far rrfp.analyze() is from what the processes of recorded_program.py measured themselves.

usage: recorded_errors.py FOLDER...   FOLDER: that of recorded_program.py; prints a table in percent

    export F_MS=30 B_MS=42 W_MS=18
    torchrun --nproc-per-node 4 recorded_program.py FOLDER 1f1b:8:0.4 zero_bubble:8:0.4 ready-bfw_plus-8-2:8:0.4
    recorded_errors.py FOLDER
"""

import json
import pathlib
import statistics
import sys

import rrfp
from recorded_program import SECONDS

KINDS = {"F": "F", "B": "BW", "I": "B", "W": "W"}


def truth_of(folder, rank):
    """The tasks that the process measured, in the order in which they ran."""
    return sorted(json.loads((folder / f"truth{rank}.json").read_text())["tasks"], key=lambda task: task[3])


def of_stage(rows, stage):
    return sorted((row for row in rows if row["stage"] == stage), key=lambda row: row["begin_ms"])


def key(row):
    return row["step"], row["kind"], row["microbatch"], row["chunk"]


def pairs_of(found, folder):
    """Of each task and of each wait: what was measured, and what was found, in ms; and the order of the tasks."""
    tasks, waits, same_order = [], [], True
    for rank in range(len(list(folder.glob("truth*.json")))):
        measured, said = truth_of(folder, rank), of_stage(found.tasks, rank)
        waited = {key(row): row["end_ms"] - row["begin_ms"] for row in of_stage(found.waits, rank)}
        names = [(KINDS[kind], mb) for _, kind, mb, _, _ in measured]
        same_order = same_order and names == [(t["kind"], t["microbatch"]) for t in said]
        for i, ((*_, begin, end), task) in enumerate(zip(measured, said)):
            tasks.append((end - begin, task["end_ms"] - task["begin_ms"]))
            if i > 0 and key(task) in waited and said[i - 1]["step"] == task["step"]:
                waits.append((begin - measured[i - 1][4], waited[key(task)]))
    return tasks, waits, same_order


def off(pairs, least=2):
    """Errors without sign in percent, of those of at least so many ms."""
    return sorted(abs(found / measured - 1) * 100 for measured, found in pairs if measured > least) or [0]


def print_case(folder, found):
    tasks, waits, _ = pairs_of(found, folder)
    took = [sum(column) for column in zip(*waits)] or [1, 1]
    by_task = off(tasks)
    step = statistics.median(s["measured_ms"] for s in found.steps)
    model = next(o["step_ms"] for o in found.forecast if o["policy"] == "recorded order")
    print(
        f"{folder.name:22}{len(tasks):6}{statistics.median(by_task):8.2f}{by_task[int(0.95 * len(by_task))]:8.2f}"
        f"{statistics.median(off(waits, 5)):8.2f}{(took[1] / took[0] - 1) * 100:8.2f}{step:10.1f}"
        f"{max(abs(s['error_percent']) for s in found.steps):8.2f}{(model / step - 1) * 100:8.2f}"
    )


def print_ready(folder, runs):
    """What ReadySchedule took on the same stages, beside the forecasts for it."""
    name, count, spread = folder.name.split(":")
    _, policy, slots, chunks = name.split("-")
    steps = [json.loads(file.read_text())["steps"] for file in folder.glob("truth*.json")]
    ran = statistics.median(max(times) for times in zip(*steps))
    for case, found in runs.items():
        if not case.endswith(f":{count}:{spread}") or (max(t["chunk"] for t in found.tasks) + 1) != int(chunks):
            continue
        for o in found.forecast:
            if o["policy"] == policy and o["slots"] == int(slots):
                said = "assumes the share of B" if o["assumes_split"] else ""
                print(f"{folder.name:26}from {case:22}{ran:9.1f}{o['step_ms']:9.1f}{(o['step_ms'] / ran - 1) * 100:8.2f} {said}")


if __name__ == "__main__":
    for folder in map(pathlib.Path, sys.argv[1:]):
        cases = sorted(folder.iterdir())
        print(f"{folder}\n{'':22}{'tasks':>6}{'median':>8}{'p95':>8}{'wait':>8}{'waits':>8}{'step ms':>10}{'replay':>8}{'model':>8}")
        share = SECONDS["B"] / (SECONDS["B"] + SECONDS["W"])
        runs = {c.name: rrfp.analyze(f"{c}/*.json.gz", backward_share=share) for c in cases if not c.name.startswith("ready-")}
        for name, found in runs.items():
            print_case(folder / name, found)
        for case in cases:
            if case.name.startswith("ready-"):
                print_ready(case, runs)
