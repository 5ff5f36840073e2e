"""The programs on the pages run."""

import pathlib
import re
import subprocess
import urllib.request

import pytest
import rrfp
import torch
from warm import PYTHON

ROOT = pathlib.Path(__file__).parents[2]
# What the page leaves to the reader.
BEFORE = """
import os, torch
torch.set_num_threads(1)
def mlp(count):
    torch.manual_seed(7)
    return [torch.nn.Linear(16, 16) for _ in range(count)]
part = mlp(2)[int(os.environ["RANK"])]
generator = torch.Generator().manual_seed(1)
batches = [(torch.randn(32, 16, generator=generator), torch.randn(32, 16, generator=generator)) for _ in range(3)]
"""
AFTER = 'torch.save(part.state_dict(), os.environ["RESULT"] + os.environ["RANK"])\n'


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.S | re.M)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/transformers.md"])
def test_the_snippets_of_a_page_run_in_their_order(page, tmp_path, monkeypatch):
    if page == "docs/transformers.md":
        pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)  # a snippet saves checkpoints
    names = {}
    found = blocks(page, "python")
    assert found
    for block in found:
        exec(compile(block, page, "exec"), names)


def test_the_server_of_the_page_on_monitoring_gives_the_metrics_of_a_pipeline():
    names = {}
    exec(blocks("docs/monitoring.md", "python")[0], names)
    with rrfp.Pipeline(
        [torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)], torch.nn.functional.mse_loss, n_microbatches=4, policy="bfw"
    ) as pipe:
        server = names["serve"](pipe, 0)
        pipe.step(torch.ones(8, 4), target=torch.zeros(8, 4))
        with urllib.request.urlopen(f"http://127.0.0.1:{server.server_address[1]}/metrics") as answer:
            text = answer.read().decode()
        server.shutdown()
        server.server_close()
    samples = dict(re.findall(r"^(\w+)\{[^}]*\} (\S+)$", text, re.M))
    assert samples["rrfp_steps_total"] == "1"
    assert float(samples["rrfp_loss"]) == pipe.last.loss
    assert re.search(r'^rrfp_stage_steps_total\{node="0",run="[^"]*",replica="0",stage="1"\} 1$', text, re.M)
    assert len(set(re.findall(r"^# TYPE (\w+) ", text, re.M))) == 54
    with pytest.raises(rrfp.Error, match="closed"):
        pipe.metrics()


# A stand-in for torchtitan around its snippet: a function that makes the pipeline, and what the trainer calls.
TITAN_BEFORE = """
import sys, types
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

def pipeline_llm(model, *, parallel_dims, loss_fn):
    stage = PipelineStage(model, dist.get_rank(), 2, torch.device("cpu"))
    return Schedule1F1B(stage, 4, loss_fn=loss_fn), [model], dist.get_rank() == 0, dist.get_rank() == 1

dist.init_process_group("gloo")
sys.modules["torchtitan.distributed.pipeline_parallel"] = types.SimpleNamespace(pipeline_llm=pipeline_llm)
config = types.SimpleNamespace(model_spec=types.SimpleNamespace(pipelining_fn=pipeline_llm))
"""
TITAN_AFTER = """
dims = types.SimpleNamespace(pp=2, cp=1, tp=1, ep=1, world_size=2)
schedule, parts, has_first, has_last = config.model_spec.pipelining_fn(
    torch.nn.Linear(8, 8), parallel_dims=dims, loss_fn=torch.nn.functional.mse_loss
)
assert type(schedule).__name__ == "ReadySchedule"
x, losses = torch.ones(8, 8), []
schedule.step(*([x] if has_first else []), target=x if has_last else None, losses=losses if has_last else None)
assert parts[0].weight.grad is not None and len(losses) == 4 * has_last
schedule.close()
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    "page, before, after", [("pytorch", "", ""), ("torchtitan", TITAN_BEFORE, TITAN_AFTER)], ids=["pytorch", "torchtitan"]
)
def test_the_program_of_a_page_runs_in_two_processes(tmp_path, page, before, after):
    program = tmp_path / "train.py"
    program.write_text(before + blocks(f"docs/{page}.md", "py")[0] + after)
    done = subprocess.run(
        [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_programs_before_and_after_moving_give_the_same_bits(tmp_path):
    programs = blocks("docs/from-torch-pipelining.md", "py")
    assert len(programs) == 2
    for name, program in zip(["before", "after"], programs):
        file = tmp_path / f"{name}.py"
        file.write_text(BEFORE + program + AFTER)
        command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        done = subprocess.run(
            ["env", f"RESULT={tmp_path}/{name}", *command, str(file)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
    for rank in range(2):
        before, after = (torch.load(tmp_path / f"{name}{rank}") for name in ("before", "after"))
        assert all(torch.equal(value, after[key]) for key, value in before.items())
