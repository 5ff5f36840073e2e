"""Ports of this machine, and processes in a network of their own, where each node has an address that is not loopback."""

import os
import pathlib
import shlex
import socket
import subprocess
import sys

import pytest
import warm

ENTER = ["unshare", "--map-root-user", "--net", "--mount", "sh", "-ec"]
ENTER_WITH_FORKS = [warm.PYTHON, str(pathlib.Path(__file__).with_name("warm_network.py"))]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def can_be_made():
    return subprocess.run([*ENTER, "ip link set lo up"], capture_output=True).returncode == 0


needs_network = pytest.mark.skipif(not can_be_made(), reason="this machine makes no network namespaces")


def address(node):
    return f"198.51.100.{node + 1}"


def run_nodes(folder, commands, leader="leader", seconds=300):
    """Runs a command for each node at the same time: arguments and variables. `leader` is a name of node 0. Returns the exit
    codes and what the nodes print."""
    (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address(0)} {leader}\n")
    lines = ["ip link set lo up", f"mount --bind {folder}/hosts /etc/hosts"]
    lines += [f"ip address add {address(node)}/32 dev lo" for node in range(len(commands))]
    for node, (arguments, variables) in enumerate(commands):
        command = shlex.join(["env", *(f"{name}={value}" for name, value in variables.items()), *map(str, arguments)])
        lines.append(f"{{ code=0; {command} >{folder}/{node}.out 2>&1 || code=$?; echo $code >{folder}/{node}.code; }} &")
    enter = ENTER if warm.PYTHON == sys.executable else ENTER_WITH_FORKS
    subprocess.run([*enter, "\n".join([*lines, "wait"])], env=os.environ, timeout=seconds, check=True)
    read = lambda name: [(folder / f"{node}.{name}").read_text() for node in range(len(commands))]
    return [int(code) for code in read("code")], read("out")
