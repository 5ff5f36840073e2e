"""However one process ends at whatever moment, the others end soon and tell why."""

import os
import pathlib
import random
import re
import signal
import subprocess

import pytest
import torch
from network import free_port
from warm import PYTHON

PROGRAM = pathlib.Path(__file__).with_name("ending_program.py")
# A soak: RRFP_RUNS=500 run.py test_endings.py
RUNS = int(os.environ.get("RRFP_RUNS", "6"))
WAYS = {  # exit code of the process, and what the others tell
    "raise in forward": (1, "LookupError: planted in forward"),
    "raise in backward": (1, "LookupError: planted in backward"),
    "raise in loss": (1, "LookupError: planted in loss"),
    "raise in program": (1, "LookupError: planted in program"),
    "exit in forward": (5, "SystemExit: 5"),
    "exit in program": (5, "the program has ended"),
    "interrupt in forward": (-signal.SIGINT, "KeyboardInterrupt"),
    "interrupt at any moment": (-signal.SIGINT, "KeyboardInterrupt"),
    "kill in forward": (-signal.SIGKILL, "was lost"),
    "kill in program": (-signal.SIGKILL, "was lost"),
}


@pytest.mark.parametrize("kind", ["pipeline", "ready"])
@pytest.mark.parametrize("run", range(RUNS))
def test_the_others_tell_how_one_process_ended(kind, run):
    chance = random.Random(f"{kind} {run}")
    world, way = chance.randrange(2, 5), chance.choice(list(WAYS))
    victim = world - 1 if way == "raise in loss" else chance.randrange(world)
    step = chance.randrange(1, 4)  # a rank that is killed before may be waited for as long as torch's timeout says
    given = [victim, step, chance.randrange(1, 5), chance.random() < 0.5, chance.choice([0, 0.8]), 0.05 * chance.random()]
    check(world, kind, way, given, {"MASTER_PORT": str(free_port())})


@pytest.mark.parametrize("way", ["raise in forward", "kill in forward"])
@pytest.mark.parametrize("victim", range(4))
def test_the_ranks_of_the_other_pipeline_tell_it_too(way, victim):
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # as torchrun has one
    variables = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    check(4, "replicated", way, [victim, 2, 3, True, 0.8, 0], variables)


def check(world, kind, way, given, variables):
    victim = given[0]
    variables |= {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1"}
    processes = [
        subprocess.Popen(
            [PYTHON, str(PROGRAM), kind, way, *map(str, given)],
            env=os.environ | variables | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    try:
        errors = [process.communicate(timeout=60)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    code, told = WAYS[way]
    assert [p.returncode for p in processes] == [code if rank == victim else 1 for rank in range(world)], errors
    for rank, error in enumerate(errors):
        if rank != victim:
            assert told in re.findall(r"^(?:\[rank\d\]: )?rrfp\.Error: (.*)", error, re.M)[-1], (way, rank, error)
