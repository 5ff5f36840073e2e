"""examples/dpo: a policy learns preferences, in any number of stages and any order with the same bits."""

import importlib.util
import os
import pathlib
import re
import subprocess

import pytest
import rrfp
import torch
from warm import PYTHON

transformers = pytest.importorskip("transformers")
PROGRAM = pathlib.Path(__file__).parents[2] / "examples/dpo/dpo.py"


def run(*options):
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # of one part: others would spin, whose processors tests beside need
    done = subprocess.run([PYTHON, str(PROGRAM), *options], env=one_thread, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def trained():
    return run("--steps", "30")


def test_the_policy_learns_what_the_reference_does_not_know(trained):
    *lines, last = trained
    losses = [float(re.search(r"loss ([\d.]+)", line)[1]) for line in lines]
    assert losses[0] < 0.7 and losses[-1] < 0.75 * losses[0]
    assert len({line.split(", ")[1] for line in lines}) > 1  # another number of microbatches
    assert float(re.match(r"held out: ([\d.]+)%", last)[1]) > 85


def test_stages_and_order_change_no_bit(trained):
    first = run("--steps", "10", "--stages", "1")
    assert first[0] == trained[0]
    assert run("--steps", "10", "--stages", "3", "--policy", "bf") == first
    assert run("--steps", "10", "--stages", "2", "--policy", "zb_h1") == first


def test_log_probabilities_of_the_reference_between_steps_give_the_same_losses(trained):
    spec = importlib.util.spec_from_file_location("dpo", PROGRAM)
    dpo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(dpo)

    def loss(output, target):
        gains = dpo.log_probability(output, target["ids"]) - target["of_reference"]
        accepted, rejected = gains.view(-1, 2).unbind(1)
        return -torch.nn.functional.logsigmoid(0.1 * (accepted - rejected)).sum()

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=dpo.VOCABULARY, **sizes, tie_word_embeddings=False)
    parts = rrfp.from_transformers(transformers.AutoModelForCausalLM.from_config(config), 3)
    optimizer = lambda parameters: torch.optim.AdamW(parameters, 3e-3)
    batches = [list(dpo.microbatches_of(dpo.pairs_of_step(step), 512)) for step in range(10)]
    with rrfp.Pipeline(parts, loss, optimizer=optimizer, count=lambda target: len(target["ids"]) // 2) as pipe:
        targets = []
        for batch in batches:  # before the first step the policy is the reference
            unknown = [{"ids": ids, "of_reference": torch.zeros(len(ids))} for ids in batch]
            outputs = pipe.eval_microbatches(batch, target_mbs=unknown)
            known = [dpo.log_probability(output, ids).detach() for output, ids in zip(outputs, batch)]
            targets.append([{"ids": ids, "of_reference": gains} for ids, gains in zip(batch, known)])
        for batch, target in zip(batches, targets):
            pipe.step_microbatches(batch, target_mbs=target, return_outputs=False)
    assert f"step 10: loss {pipe.last.loss:.6f}, {len(batches[-1])} microbatches" == trained[0]
