"""Several processes, one stage each, started by torchrun."""

import pathlib
import subprocess
import sys

import pytest
import torch
from models import mlp, rows, train_plainly

FOLDER = pathlib.Path(__file__).parent


def torchrun(processes, *args):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(FOLDER / "train_one_stage.py"), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=FOLDER,
    )


@pytest.mark.parametrize("processes, way", [(2, "ready"), (4, "jitter")])
def test_every_process_trains_its_stage_to_the_bits_of_a_plain_loop(tmp_path, processes, way):
    done = torchrun(processes, tmp_path, way)
    assert done.returncode == 0, done.stderr
    plain = mlp(processes)
    losses = train_plainly(plain, torch.nn.functional.mse_loss, [rows(step) for step in range(3)], 6)
    for rank in range(processes):
        saved = torch.load(tmp_path / f"{rank}.pt")
        assert saved["losses"] == losses
        expected = plain[rank].state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in saved["part"].items())


def test_a_killed_process_ends_the_others_with_its_name(tmp_path):
    done = torchrun(2, tmp_path, "kill")
    assert done.returncode != 0
    assert "node 1" in done.stderr and "lost" in done.stderr, done.stderr
    assert not list(tmp_path.iterdir())
