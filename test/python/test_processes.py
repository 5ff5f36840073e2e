"""Several processes, one stage each."""

import os
import pathlib
import signal
import subprocess

import pytest
import torch
from cases import CASES, PROCESSES, Divided, OneOfTwo
from models import rows
from network import address, free_port, needs_network, run_nodes
from warm import PYTHON

FOLDER = pathlib.Path(__file__).parent


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """By process: for each case, the losses and the part."""
    folder = tmp_path_factory.mktemp("trained")
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    done = subprocess.run(
        [*command, str(FOLDER / "one_process.py"), str(folder), "cases"],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=FOLDER,
    )
    assert done.returncode == 0, done.stderr
    return [torch.load(folder / f"{rank}.pt") for rank in range(PROCESSES)]


@pytest.mark.parametrize("name", CASES)
def test_every_process_trains_its_part_to_the_bits_of_a_plain_loop(trained, name):
    expected, parts = CASES[name].plain()
    for of_process, part in zip(trained, parts, strict=True):
        losses, state = of_process[name]
        for step, expected_step in zip(losses, expected, strict=True):
            assert step == pytest.approx(expected_step, rel=0, abs=0, nan_ok=True)
        assert all(torch.equal(value, state[key]) for key, value in part.state_dict().items())


def two_processes(*arguments):
    """Without torchrun, which ends the others itself as soon as one is gone."""
    port = free_port()
    return [
        subprocess.Popen(
            [PYTHON, *arguments],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=FOLDER,
        )
        for rank in range(2)
    ]


def ends_of_two(folder, what):
    processes = two_processes(str(FOLDER / "one_process.py"), str(folder), what)
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert not list(folder.iterdir())
    return [process.returncode for process in processes], errors


def test_tensor_parallel_ranks_count_whole_parameters_once_in_the_norm_and_save_what_each_has(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(
        "import os, sys\n"
        f"sys.path.insert(0, {str(FOLDER)!r})\n"
        "import rrfp, torch\n"
        "import torch.distributed.checkpoint as dcp\n"
        "from cases import Divided\n"
        "from models import adam, rows\n"
        "x, y = rows(0)\n"
        "mse = torch.nn.functional.mse_loss\n"
        "torch.distributed.init_process_group('gloo')\n"
        "rank = torch.distributed.get_rank()\n"
        "with rrfp.Pipeline(lambda i, n, group: Divided(i, group), mse, 6, optimizer=adam, settings={'pipeline.tp': 2}) as pipe:\n"
        "    pipe.step(x, target=y)\n"
        "    os.write(1, f'norm {pipe.last.gradient_norm!r}\\n'.encode())\n"  # at once, beside the other process
        "    before, state = pipe.state_dict(), pipe.state_dict()\n"
        "    dcp.save(before, checkpoint_id=sys.argv[1])\n"
        "    pipe.step(x, target=y)\n"
        "    dcp.load(state, checkpoint_id=sys.argv[1])\n"
        "    pipe.load_state_dict(state)\n"
        "    after = pipe.state_dict()\n"
        "    assert {f'0.up@{rank}', f'optimizer.0.down.exp_avg@{rank}', 'optimizer.0.up.step'} <= before.keys()\n"
        "    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)\n"
        "    both = {k.replace(f'@{rank}', f'@{1 - rank}'): 2 * v for k, v in before.items()}\n"
        "    pipe.load_state_dict(both | before)\n"
        "torch.distributed.destroy_process_group()\n"
    )
    launch = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program), str(tmp_path / "dcp")]
    done = subprocess.run(launch, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    halves = [Divided(0, OneOfTwo(rank)) for rank in range(2)]
    for inputs, target in zip(*(t.tensor_split(6) for t in rows(0))):
        inner = [torch.tanh(torch.nn.functional.linear(inputs, half.up)) for half in halves]
        output = sum(torch.nn.functional.linear(h, half.down) for h, half in zip(inner, halves)) + halves[0].bias
        (torch.nn.functional.mse_loss(output, target) / 6).backward()
    expected = torch.cat([p.grad.flatten() for half in halves for p in half.parameters() if p.grad is not None]).norm()
    norms = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("norm")]
    assert norms == pytest.approx([expected.item()] * 2, rel=1e-5)


def test_a_killed_process_ends_the_others_with_its_name(tmp_path):
    codes, errors = ends_of_two(tmp_path, "kill")
    assert codes == [1, -signal.SIGKILL], errors
    assert "rrfp.Error" in errors[0] and "node 1" in errors[0] and "lost" in errors[0], errors


def test_a_target_with_other_rows_than_the_inputs_of_another_process_is_refused(tmp_path):
    codes, errors = ends_of_two(tmp_path, "rows")
    assert codes == [1, 1], errors
    assert "target: expected 24 rows, as the arguments have, got 7" in errors[1], errors


def test_other_microbatches_than_those_of_another_process_are_refused(tmp_path):
    codes, errors = ends_of_two(tmp_path, "counts")
    assert codes == [1, 1], errors
    assert "expected 6 microbatches, as the leading process has given, got 5" in errors[1], errors


def test_an_update_that_another_process_does_not_make_is_refused(tmp_path):
    codes, errors = ends_of_two(tmp_path, "updates")
    assert codes == [1, 1], errors
    assert all("expected step 2 with an update, as the leading process has given" in error for error in errors), errors


def test_an_evaluation_while_another_process_trains_is_refused(tmp_path):
    codes, errors = ends_of_two(tmp_path, "kinds")
    assert codes == [1, 1], errors
    assert all("expected step 2, as other processes have begun, got evaluation 1" in error for error in errors), errors


def test_names_that_two_processes_have_are_refused_in_both(tmp_path):
    codes, errors = ends_of_two(tmp_path, "names")
    assert codes == [1, 1], errors
    last = [error.splitlines()[-1] for error in errors]
    assert last[0] == last[1], last
    assert last[0].startswith("rrfp.Error: parameter 'a.") and "is in part 0 of the model and in part 1: names" in last[0]


def test_ctrl_c_ends_the_wait_for_a_process_that_makes_its_part():
    program = (
        "import os, signal, sys, threading, time, rrfp, torch\n"
        "def part(index, count):\n"
        "    if index == 0: threading.Timer(2, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        "    else: time.sleep(60)\n"
        "    return torch.nn.Linear(2, 2)\n"
        "try: rrfp.Pipeline(part, torch.nn.functional.mse_loss, n_microbatches=2)\n"
        "except KeyboardInterrupt: print('ended')\n"
    )
    processes = two_processes("-c", program)
    output, error = processes[0].communicate(timeout=50)
    assert (processes[0].returncode, output) == (0, "ended\n"), error
    assert processes[1].poll() is None
    processes[1].kill()
    processes[1].communicate(timeout=20)


def test_a_process_that_does_not_call_step_is_the_cause_of_a_hang(tmp_path):
    codes, errors = ends_of_two(tmp_path, "late")
    assert codes == [1, 1], errors
    assert all("cause: stage 1: its program has not given the batch of step 2" in e for e in errors), errors
    assert "stage 1: step 2: waits for its program, which has not given the batch\n" in errors[0], errors


PROGRAM_OF_ENDS = """
import os, signal, sys, time, rrfp, torch
rank, how = int(os.environ["RANK"]), sys.argv[1]
x = torch.ones(4, 2)
with rrfp.Pipeline(torch.nn.Linear(2, 2), torch.nn.functional.mse_loss, 2) as pipe:
    pipe.step(*([x] if rank == 0 else []), target=x if rank == 1 else None)
    if rank == 1 and how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == (1 if how == "late" else 0):
        time.sleep(2)
    if rank == 1:
        state = pipe.state_dict()
        pipe.load_state_dict(state)
        print(*sorted(name for name in state if "optimizer" not in name), flush=True)
print("ended", flush=True)
"""


def test_a_process_that_is_late_at_the_end_still_has_its_state():
    processes = two_processes("-c", PROGRAM_OF_ENDS, "late")
    outputs = [process.communicate(timeout=100) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert [output for output, _ in outputs] == ["ended\n", "1.bias 1.weight\nended\n"]


def test_the_loss_of_a_process_before_the_end_of_a_with_block_is_raised():
    processes = two_processes("-c", PROGRAM_OF_ENDS, "kill")
    _, error = [process.communicate(timeout=100) for process in processes][0]
    assert processes[0].returncode == 1
    assert error.splitlines()[-1].startswith("rrfp.Error: node 1 (stage 1"), error


def test_so_is_a_leading_process_that_does_not_begin_a_step(tmp_path):
    codes, errors = ends_of_two(tmp_path, "first")
    assert codes == [1, 1], errors
    assert all("cause: the leading process has not begun step 2, for which others wait" in e for e in errors), errors


def test_ctrl_c_ends_the_wait_for_other_processes():
    program = (
        "import os, signal, threading, rrfp\n"
        "Pipeline = rrfp.Pipeline  # which imports torch: numpy does not bear an interrupt there\n"
        "threading.Timer(2, os.kill, [os.getpid(), signal.SIGINT]).start()\n"
        "settings = {'device.kind': 'emulated', 'transport.join_timeout_s': 600}\n"
        "try: Pipeline(n_stages=2, n_microbatches=2, settings=settings).step()\n"
        "except KeyboardInterrupt: print('ended')\n"
    )
    port = free_port()
    variables = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = subprocess.run(
        [PYTHON, "-c", program], env=os.environ | variables, capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


@needs_network
@pytest.mark.parametrize("key", [None, "a key of more than sixteen bytes"])
def test_processes_on_an_address_that_is_not_loopback_need_a_key_in_the_environment(key, tmp_path):
    program = (
        "import sys, rrfp\n"
        "settings = {'device.kind': 'emulated', 'transport.listen': sys.argv[1]}\n"
        "with rrfp.Pipeline(n_stages=2, n_microbatches=2, settings=settings) as pipe:\n"
        "    pipe.step()\n"
    )
    variables = {"WORLD_SIZE": "2", "MASTER_ADDR": address(0), "MASTER_PORT": "29500"} | ({} if key is None else {"RRFP_KEY": key})
    commands = [
        ([PYTHON, "-c", program, address(rank)], variables | {"RANK": str(rank)}) for rank in range(2)
    ]
    codes, outputs = run_nodes(tmp_path, commands)
    if key is None:
        assert codes == [1, 1] and all("requires a key" in output for output in outputs), outputs
    else:
        assert codes == [0, 0], outputs
        assert not any(key in output for output in outputs)
