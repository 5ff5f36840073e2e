"""The programs and files for engines that start the processes of a job: torchrun, Kubeflow Trainer, JobSet, SkyPilot."""

import json
import os
import pathlib
import re
import runpy
import shutil
import subprocess
import sys

import pytest
import rrfp
import torch
from network import address, needs_network, run_nodes
from warm import PYTHON

safetensors = pytest.importorskip("safetensors.torch")
yaml = pytest.importorskip("yaml")

ROOT = pathlib.Path(__file__).parents[2]
TRAIN = ROOT / "examples/engines/train.py"
MANIFESTS = ROOT / "deploy/kubernetes"
RRFP_NODE = pathlib.Path(rrfp.__file__).parents[2] / "bin/rrfp-node"
KEY = "a key of more than sixteen bytes"
JOB = """
[pipeline]
stages = 4
microbatches = 4
[model]
layers = 4
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 1
sequence_length = 32
[train]
steps = 3
"""
TORCHRUN = [PYTHON, "-m", "torch.distributed.run"]

# train.py, where the last stage has an accident in one call, the first time that torchrun starts it: it raises a text, or is
# killed once a file exists.
WITH_ACCIDENT = f"""
import os, runpy, signal, sys, time, torch
call, accident = int(sys.argv.pop(1)), sys.argv.pop(1)
calls = 0
class Tanh(torch.nn.Tanh):
    def forward(self, x):
        global calls
        calls += 1
        if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"], calls) == ("1", "0", call):
            if "/" not in accident:
                raise LookupError(accident)
            while not os.path.exists(accident):
                time.sleep(0.05)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)
torch.nn.Tanh = Tanh
runpy.run_path({str(TRAIN)!r}, run_name="__main__")
"""


def run(command, **environment):
    return subprocess.run(
        [str(part) for part in command], env=os.environ | environment, capture_output=True, text=True, timeout=200
    )


def losses(output):
    return [line for line in output.splitlines() if line.startswith("step ")]


def newest(checkpoints):
    folder = max(checkpoints.glob("step-*"))
    return {file.name: safetensors.load_file(file) for file in folder.glob("*.safetensors")}


@pytest.fixture
def in_one_process(monkeypatch, capfd):
    """Runs train.py in this process, and returns what it prints."""

    def run(*options):
        monkeypatch.setattr(sys, "argv", [str(TRAIN), *options])
        runpy.run_path(str(TRAIN), run_name="__main__")
        return losses(capfd.readouterr().out)

    return run


@pytest.fixture
def with_accident(tmp_path):
    program = tmp_path / "with_accident.py"
    program.write_text(WITH_ACCIDENT)
    return lambda *accident: [program, *accident]


def test_torchrun_starts_all_again_after_a_kill_to_the_bits_of_an_undisturbed_run(tmp_path, in_one_process, with_accident):
    expected = in_one_process("--stages=2", "--steps=12", f"--checkpoints={tmp_path}/undisturbed")
    saved = tmp_path / "killed/step-00000005/manifest.json"  # before process 1 is killed in step 8
    killed = run(
        [*TORCHRUN, "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
        + [*with_accident(16 * 7 + 3, saved), "--steps=12", f"--checkpoints={tmp_path}/killed"]
    )
    assert killed.returncode == 0, killed.stderr
    assert len(expected) == 12
    assert losses(killed.stdout) == expected[:7] + expected[5:]
    states, others = newest(tmp_path / "killed"), newest(tmp_path / "undisturbed")
    assert states.keys() == others.keys() and len(states) == 2
    for name, state in states.items():
        assert state.keys() == others[name].keys()
        assert all(torch.equal(value, others[name][key]) for key, value in state.items())


def test_the_error_file_of_torchrun_names_the_stage_and_the_task(tmp_path, with_accident):
    file = tmp_path / "error.json"
    done = run(  # without warm.py, as users do
        [sys.executable, *TORCHRUN[1:], "--standalone", "--nproc-per-node=2", *with_accident(16 + 1, "no such row")],
        PYTHON_EXEC=sys.executable,
        TORCHELASTIC_ERROR_FILE=str(file),
    )
    assert done.returncode == 1
    message = json.loads(file.read_text())["message"]["message"]
    assert "stage 1, F0 of step 2: LookupError: no such row" in message, message


@pytest.fixture
def path_with_torchrun(tmp_path):
    program = tmp_path / "bin/torchrun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {PYTHON} -m torch.distributed.run "$@"\n')
    program.chmod(0o755)
    return f"{program.parent}:{os.environ['PATH']}"


@needs_network
def test_the_task_of_skypilot_trains_on_two_nodes(tmp_path, in_one_process, path_with_torchrun):
    task = yaml.safe_load((ROOT / "examples/engines/skypilot.yaml").read_text())
    variables = {
        "PATH": path_with_torchrun,
        "SKYPILOT_NUM_NODES": str(task["num_nodes"]),
        "SKYPILOT_NODE_IPS": "\n".join(address(node) for node in range(task["num_nodes"])),
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        **dict.fromkeys(task["secrets"], KEY),
    }
    command = ["bash", "-c", f"cd {ROOT / task['workdir']}\n{task['run']}"]
    commands = [(command, variables | {"SKYPILOT_NODE_RANK": str(node)}) for node in range(task["num_nodes"])]
    codes, outputs = run_nodes(tmp_path, commands)
    assert codes == [0, 0], outputs
    assert losses(outputs[0]) == in_one_process("--stages=2")


def of_kind(kind, file):
    found, = (resource for resource in yaml.safe_load_all((MANIFESTS / file).read_text()) if resource["kind"] == kind)
    return found


def in_pod(container, key, arguments, folder, node, variables):
    """The arguments and variables of a container, with a folder for each of its volumes."""
    fields = {"status.podIP": address(node), "metadata.annotations['batch.kubernetes.io/job-completion-index']": str(node)}
    variables = dict(variables)
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        variables[variable["name"]] = fields[field] if field else KEY if "secretKeyRef" in source else variable["value"]
    volumes = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}

    def filled(text):
        text = re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], text)
        return re.sub(f"(^|(?<==))({'|'.join(volumes)})(?=/|$)", lambda found: f"{folder}/{volumes[found[2]]}", text)

    return [filled(text) for text in [*container.get(key, []), *arguments]], variables


@needs_network
def test_the_command_of_the_trainjob_trains_on_its_nodes(tmp_path, in_one_process, path_with_torchrun):
    job, runtime = (of_kind(kind, "trainjob.yaml") for kind in ("TrainJob", "TrainingRuntime"))
    trainer = job["spec"]["trainer"]
    replicated, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    container, = replicated["template"]["spec"]["template"]["spec"]["containers"]
    leader = f"{job['metadata']['name']}-{replicated['name']}-0-0.{job['metadata']['name']}"
    (tmp_path / "program").mkdir()
    shutil.copy(TRAIN, tmp_path / "program")
    commands = [
        in_pod(container | trainer, "command", trainer["args"], tmp_path, node, {
            "PATH": path_with_torchrun,
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": leader,
            "PET_MASTER_PORT": "29400",
        })
        for node in range(trainer["numNodes"])
    ]
    codes, outputs = run_nodes(tmp_path, commands, leader)
    assert codes == [0] * len(commands), outputs
    assert losses(outputs[0]) == in_one_process(f"--stages={len(commands)}")
    assert len(newest(tmp_path / "checkpoints")) == len(commands)


def test_the_trainjob_is_what_the_controller_looks_for():
    job, runtime = (of_kind(kind, "trainjob.yaml") for kind in ("TrainJob", "TrainingRuntime"))
    assert job["spec"]["runtimeRef"] == {"kind": runtime["kind"], "name": runtime["metadata"]["name"]}
    assert runtime["spec"]["mlPolicy"] == {"torch": {}}
    replicated, = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert replicated["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    container, = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert container["name"] == replicated["name"] == "node"
    assert not any(variable["name"].startswith("PET_") for variable in container["env"])


@needs_network
@pytest.mark.skipif(not RRFP_NODE.exists(), reason="rrfp-node is not built")
def test_the_nodes_of_the_jobset_join_and_train(tmp_path):
    jobset = of_kind("JobSet", "jobset.yaml")
    replicated, = jobset["spec"]["replicatedJobs"]
    spec = replicated["template"]["spec"]
    pod = spec["template"]["spec"]
    for volume, file, text in [("secret", "key", KEY), ("job", "job.toml", JOB)]:
        (tmp_path / volume).mkdir()
        (tmp_path / volume / file).write_text(text)
    for volume in ["run", "checkpoints"]:
        (tmp_path / volume).mkdir()
    key, = pod["initContainers"]
    subprocess.run(in_pod(key, "command", [], tmp_path, 0, {})[0], check=True)
    container, = pod["containers"]
    commands = []
    for node in range(spec["completions"]):
        arguments, variables = in_pod(container, "args", [], tmp_path, node, {})
        commands.append(([RRFP_NODE, *arguments], variables))
    leader, = (variable["value"] for variable in container["env"] if variable["name"] == "MASTER_ADDR")
    codes, outputs = run_nodes(tmp_path, commands, leader)
    assert codes == [0] * len(commands), outputs
    assert "step 3/3" in outputs[0]
    assert (tmp_path / "checkpoints/checkpoints/step-00000003/manifest.json").exists()


def test_the_jobset_has_the_job_of_the_other_manifest():
    job, jobset = of_kind("Job", "rrfp.yaml")["spec"], of_kind("JobSet", "jobset.yaml")
    replicated, = jobset["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]
    assert pod.pop("subdomain") == "rrfp"  # JobSet sets it
    name = jobset["metadata"]["name"]
    for variable in pod["containers"][0]["env"]:
        if variable["name"] == "MASTER_ADDR":
            variable["value"] = f"{name}-{replicated['name']}-0-0.{name}"
    assert replicated["template"]["spec"] == job
    assert replicated["replicas"] == 1 and jobset["spec"]["failurePolicy"] == {"maxRestarts": 0}


@pytest.mark.parametrize("file, kind", [("jobset.yaml", "JobSet"), ("trainjob.yaml", "TrainingRuntime")])
def test_the_schema_of_kubernetes_accepts_what_the_manifest_makes(file, kind):
    schemas = pytest.importorskip("kubernetes_validate")
    spec = of_kind(kind, file)["spec"]
    job = (spec if kind == "JobSet" else spec["template"]["spec"])["replicatedJobs"][0]["template"]
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "rrfp"}} | job
    for resource in [of_kind("PersistentVolumeClaim", file), job]:
        schemas.validate(resource, schemas.latest_version(), strict=True)
    with pytest.raises(schemas.ValidationError):
        schemas.validate(job | {"spec": job["spec"] | {"backOffLimit": 1}}, schemas.latest_version(), strict=True)


def closed(schema):
    """The schema without unknown fields, which the API server would drop."""
    if isinstance(schema, dict):
        schema = {name: closed(value) for name, value in schema.items()}
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            schema.setdefault("additionalProperties", False)
    elif isinstance(schema, list):
        schema = [closed(value) for value in schema]
    return schema


@pytest.mark.skipif("RRFP_CRDS" not in os.environ, reason="RRFP_CRDS names no folder of JobSet's and Trainer's CRDs")
@pytest.mark.parametrize(
    "file, kind", [("jobset.yaml", "JobSet"), ("trainjob.yaml", "TrainingRuntime"), ("trainjob.yaml", "TrainJob")]
)
def test_the_schema_of_the_engine_accepts_the_manifest(file, kind):
    jsonschema = pytest.importorskip("jsonschema")
    resource = of_kind(kind, file)
    definitions = [yaml.safe_load(path.read_text()) for path in pathlib.Path(os.environ["RRFP_CRDS"]).glob("*.yaml")]
    versions, = (d["spec"]["versions"] for d in definitions if d["spec"]["names"]["kind"] == kind)
    schema, = (v["schema"]["openAPIV3Schema"] for v in versions if resource["apiVersion"].endswith("/" + v["name"]))
    jsonschema.validate(resource, closed(schema))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(resource | {"spec": resource["spec"] | {"replicas": 1}}, closed(schema))
