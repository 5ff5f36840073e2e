"""rrfp.analyze() finds in the traces of torch's own profiler what the processes measured themselves."""

import gzip
import os
import pathlib
import re
import statistics
import subprocess
import sys

import pytest
import rrfp
from recorded_errors import off, pairs_of
from warm import PYTHON

FOLDER = pathlib.Path(__file__).parent
ROOT = FOLDER.parents[1]
CASES = ["1f1b:4:0.4", "1f1b:8:0", "gpipe:4:0", "interleaved:4:0.4", "zero_bubble:4:0", "zbv:4:0.4"]


def torchrun(processes, *arguments):
    done = subprocess.run(
        [
            *[PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"],
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=FOLDER,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """The folder of the traces of all cases, recorded by two processes."""
    folder = tmp_path_factory.mktemp("traces")
    said = torchrun(2, FOLDER / "recorded_program.py", folder, *CASES)
    assert [f"recorded {case}" in said for case in CASES] == [True] * len(CASES)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_tasks_and_waits_take_as_long_as_the_processes_measured(recorded, case):
    tasks, waits, same_order = pairs_of(rrfp.analyze(f"{recorded}/{case}/*.json.gz"), recorded / case)
    assert same_order
    # A busy machine may stop a process between a task and its name; recorded_errors.py prints the errors.
    assert statistics.median(off(tasks)) < 5
    took, said = map(sum, zip(*tasks))
    assert said == pytest.approx(took, rel=0.1)
    # Between a task of Python and its name in the trace lies some 0.2 ms.
    took, said = map(sum, zip(*waits))
    assert said == pytest.approx(took, rel=0.1, abs=0.8 * len(waits))


@pytest.mark.parametrize("case", CASES)
def test_the_replay_meets_the_measured_steps(recorded, case):
    found = rrfp.analyze(f"{recorded}/{case}/*.json.gz")
    assert [step["step"] for step in found.steps] == [1, 2, 3]
    for step in found.steps:
        assert step["replayed_ms"] == pytest.approx(step["measured_ms"], rel=0.05)
    policies = {(row["policy"], row["slots"]) for row in found.forecast}
    assert ("recorded order", 0) in policies
    most = max(task["slots"] for task in found.tasks)
    assert {("bf", most), ("bfw_plus", most)} <= policies
    assert "readiness" in found.sentence


def test_the_page_of_a_recorded_run_has_its_stages(recorded, tmp_path):
    rrfp.analyze(recorded / "1f1b:4:0.4" / name for name in ("rank1.json.gz", "rank0.json.gz")).report(tmp_path / "x.html")
    text = (tmp_path / "x.html").read_text()
    assert "recorded" in text and "1F1B runs them" in text


def test_a_trace_that_is_cut_off_is_refused_with_its_name(recorded, tmp_path):
    whole = (recorded / CASES[0] / "rank0.json.gz").read_bytes()
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(rrfp.Error, match="rank0.json.gz: expected .* ends too early") as refused:
        rrfp.analyze(path)
    assert refused.value.exit_code == 2
    path.write_bytes(gzip.compress(gzip.decompress(whole)[:5000]))
    with pytest.raises(rrfp.Error, match="JSON that ends too early"):
        rrfp.analyze(path)
    with pytest.raises(rrfp.Error, match="expected the traces of all ranks|linear, interleaved or V|group"):
        rrfp.analyze(recorded / CASES[3] / "rank0.json.gz")
    with pytest.raises(rrfp.Error, match="got 'nothing/\\*.gz'"):
        rrfp.analyze("nothing/*.gz")


def test_the_program_of_the_page_records_what_the_page_analyzes(tmp_path):
    page = (ROOT / "docs/analyze.md").read_text()
    record, analyze = re.findall(r"^```python\n(.*?)^```", page, re.S | re.M)[:2]
    (tmp_path / "train.py").write_text(record)
    done = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    program = "import sys; sys.modules['torch'] = None\n" + analyze
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "readiness" in done.stdout and (tmp_path / "run.html").exists()


def test_rows_of_the_simulator_are_a_trace_as_well(tmp_path):
    settings = {"pipeline.stages": 2, "pipeline.microbatches": 4, "dispatch.policy": "one_f_one_b"}
    made = rrfp.simulate(settings={**settings, "dispatch.mode": "in-order"}, steps=2)
    columns = list(made.tasks[0])
    lines = [",".join(columns), *(",".join(str(row[c]) for c in columns) for row in made.tasks)]
    (tmp_path / "tasks.csv").write_text("\n".join(lines))
    found = rrfp.analyze(os.fspath(tmp_path / "tasks.csv"))
    assert len(found.tasks) == len(made.tasks)
    assert [s["measured_ms"] for s in found.steps] == pytest.approx([s["ms"] for s in made.steps])


def test_a_log_of_timers_gives_steps_of_mean_times():
    found = rrfp.analyze(ROOT / "test/foreign/recorded/megatron.log")
    assert len(found.steps) == 3 and len(found.tasks) == 3 * 4 * 2 * 8
    assert "not measured" in found.notes[0]
    assert found._repr_html_().startswith("<svg") and "two replicas" in found._repr_html_()
    with pytest.raises(rrfp.Error, match="expected a file at least, got none"):
        rrfp.analyze([])
    for share in (-1, 2, float("nan"), "half"):
        with pytest.raises(ValueError, match="^backward_share: expected a number from 0 to 1, got "):
            rrfp.analyze(ROOT / "test/foreign/recorded/megatron.log", backward_share=share)
    with pytest.raises(rrfp.Error, match="expected ranks of 5 stages"):
        rrfp.analyze(ROOT / "test/foreign/recorded/megatron.log", stages=5)
    assert len(rrfp.analyze(ROOT / "test/foreign/recorded/megatron.log", microbatches=16).tasks) == 3 * 4 * 2 * 16
