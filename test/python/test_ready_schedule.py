"""Schedules of torch.distributed.pipelining that run by readiness, in several processes."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from fake_cuda import needs_fake, variables_of_forks
from rrfp.torch import _rendezvous
from warm import PYTHON

FOLDER = pathlib.Path(__file__).parent
JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.8}
# Of processes, options and cases of ready_program.py.
RUNS = [
    (2, {}, ["one_microbatch", "bfloat16", "other_rows", "dropout", "checkpointed", "evaluation", "batch_norm"]),
    (2, {}, ["resumed", "of_lists", "gradient_of_an_input", "compiled_loss", "losses_of_other_shapes"]),
    (3, {"settings": JITTER}, ["one_chunk", "interleaved", "v_shape", "many_outputs", "other_counts"]),
    (2, {"split_backward": False, "settings": JITTER}, ["one_chunk", "interleaved"]),
    (2, {"policy": "bf", "slots": 2}, ["one_chunk", "v_shape"]),
    (4, {}, ["fully_sharded", "sharded_again", "replicated", "collective_outside"]),
    (4, {}, ["tensor_parallel", "tensor_parallel_at_the_end"]),
    (4, {"hang_timeout_s": 45}, ["replicated_experts", "verdicts_that_differ"]),
    (2, {}, ["in_a_trainer", "reported", "other_outputs", "refused", "raised", "disagreeing", "other_options", "other_kinds"]),
    (2, {}, ["interrupted"]),
    (3, {}, ["among_others", "skipped", "cast_several_times", "hooks_of_modules"]),
    (2, {"settings": JITTER}, ["reentrant", "cast_several_times"]),
]
WRONG = 'Error: settings["transport.join_timeout_s"]: expected a number in [0.01, 86400], got a string "soon"'


def first_of(value):
    return value[0] if isinstance(value, list) else ""


def run_cases(processes, options, cases, variables):
    done = subprocess.run(
        [
            *[PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"],
            *[str(FOLDER / "ready_program.py"), repr(options), *cases],
        ],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=FOLDER,
        env=os.environ | variables,
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("passed")] == [f"passed {c}" for c in cases]


@pytest.mark.parametrize("processes, options, cases", RUNS, ids=first_of)
def test_a_ready_schedule_gives_the_bits_of_a_plain_loop(processes, options, cases):
    run_cases(processes, options, cases, {})


# The fake draws other random numbers on each device, and FSDP2 fails on it without rrfp as well.
@needs_fake
@pytest.mark.parametrize(
    "processes, options, cases",
    [
        (2, {"settings": JITTER}, ["interleaved", "v_shape", "many_outputs", "evaluation"]),
        (2, {"split_backward": True, "policy": "zb_h1"}, ["one_chunk", "other_rows"]),
        (4, {}, ["replicated", "tensor_parallel"]),
    ],
    ids=first_of,
)
def test_stages_on_cuda_devices(processes, options, cases):
    run_cases(processes, options, cases, variables_of_forks())


@needs_fake
def test_the_program_that_measures_gpus():
    program = FOLDER.parent.parent / "bench" / "gpu" / "ready"
    start = f"import runpy, sys; sys.executable = {PYTHON!r}; runpy.run_path({str(program)!r}, run_name='__main__')"
    done = subprocess.run(
        [PYTHON, "-c", start, "--small", "--processes", "2"],
        env=os.environ | variables_of_forks(),
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| ReadySchedule, V, delays of sigma 0.6 |" in done.stdout


@pytest.mark.parametrize(
    "how, told",
    [
        ("before", "rank 1 has ended before its first step"),
        ("wrong leader", f"rank 0 has ended before its first step: {WRONG}"),
        ("wrong", f"rank 1 has ended before its first step: {WRONG}"),
        ("exit", "node 1 (stage 1): the program has ended"),
        ("raise", "node 1 (stage 1): LookupError: no more rows"),
        ("close", "node 1 (stage 1): has finished, but other processes have begun another step"),
    ],
)
def test_a_rank_is_told_at_once_how_another_one_left(tmp_path, how, told):
    start = lambda rank: subprocess.Popen(
        [PYTHON, str(FOLDER / "leaving_program.py"), str(rank), str(tmp_path / "store"), how],
        stdout=subprocess.PIPE,
        text=True,
    )
    processes = [start(rank) for rank in range(2)]
    try:
        out = [process.communicate(timeout=400)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    stays = 1 if how == "wrong leader" else 0
    assert [line for line in out[stays].splitlines() if not line.startswith("[Gloo]")] == [f"Error: {told}"]


def test_an_attempt_of_torchrun_does_not_see_the_ranks_of_the_one_before(monkeypatch):
    """torchrun keeps its store."""
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)
    of_attempt = []
    for attempt in ("0", "1"):
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", attempt)
        of_attempt.append([_rendezvous._departures(), _rendezvous._meeting("stages", [0, 1], 1)])
        for place in of_attempt[0]:
            place.set("0", "left")
    assert all(place.check(["0"]) for place in of_attempt[0])
    assert not any(place.check(["0"]) for place in of_attempt[1])


def test_the_package_imports_without_torch():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import rrfp; assert 'bfw_plus' in rrfp.policies(); assert rrfp.__version__\n"
        "shape = {'pipeline.stages': 4, 'pipeline.microbatches': 8, 'cost.weight_ms': 0}\n"
        "made = rrfp.simulate(settings={**shape, 'dispatch.policy': 'one_f_one_b', 'dispatch.mode': 'in-order'}, steps=2)\n"
        "assert made.ms() == (8 + 3) * (made.stages[0]['busy_ms'] / 16), made.stages\n"
        "assert len(made.tasks) == 2 * 4 * 16 and made.tasks[0]['kind'] == 'F' and len(made.stages) == 4\n"
        "try: rrfp.simulate(settings={'pipeline.stage': 4})\n"
        "except rrfp.Error as e: assert 'did you mean stages' in str(e) and 'settings[\"pipeline.stage\"]' in str(e), e\n"
        "try: rrfp.Pipeline\nexcept ImportError: pass\nelse: raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_simulation_can_be_interrupted():
    program = (
        "import _thread, threading, rrfp\n"
        "threading.Timer(0.5, _thread.interrupt_main).start()\n"
        "try: rrfp.simulate(settings={'pipeline.stages': 4, 'pipeline.microbatches': 64}, steps=1000000)\n"
        "except KeyboardInterrupt: print('interrupted')\n"
        "try: rrfp.simulate(steps=1000001)\n"
        "except ValueError as e: print(e)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert done.stdout == "interrupted\nsteps: expected an integer from 1 to 1000000, got 1000001\n"
