"""examples/dpo: a policy learns preferences, in any number of stages and any order with the same bits."""

import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("transformers")
PROGRAM = pathlib.Path(__file__).parents[2] / "examples/dpo/dpo.py"


def run(*options):
    done = subprocess.run([sys.executable, str(PROGRAM), *options], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_policy_learns_what_the_reference_does_not_know():
    *lines, last = run()
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines]
    assert losses[0] < 0.7 and losses[-1] < 0.75 * losses[0]
    assert len({line.split(", ")[1] for line in lines}) > 1  # another number of microbatches
    assert float(re.match(r"held out: ([\d.]+)%", last)[1]) > 85


def test_stages_and_order_change_no_bit():
    first = run("--steps", "10", "--stages", "1")
    assert run("--steps", "10", "--stages", "3", "--policy", "bf") == first
    assert run("--steps", "10", "--stages", "2", "--policy", "zb_h1") == first
