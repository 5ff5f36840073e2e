"""How the ranks of a pipeline find each other: through the store of torch.distributed."""

import atexit
import collections
import contextlib
import json
import os
import secrets
import socket
import sys
import tempfile
import time

import torch.distributed as dist

from .._errors import Error
from .._modules import one_line

_made = collections.Counter()  # pipelines that this process has made with the same ranks


def ranks_of_group(group):
    return list(range(dist.get_world_size())) if group is None else dist.get_process_group_ranks(group)


def next_number(kind, ranks):
    """How often these ranks meet, this time included: they make their pipelines in the same order."""
    _made[kind, tuple(ranks)] += 1
    return _made[kind, tuple(ranks)]


def _store(name):
    """For this attempt alone: torchrun keeps its store when it starts the ranks again."""
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"rrfp/{attempt}/{name}", dist.distributed_c10d._get_default_store())


def _meeting(kind, ranks, number):
    name = "-".join(map(str, ranks))
    return _store(f"{kind}/{name}/{number}")


def _departures():
    """Where ranks that end tell the others why."""
    return _store("left")


def _reason(left, rank):
    text = left.get(str(rank)).decode()
    return f": {text}" if text else ""


def _check_here(left, rank):
    if left.check([str(rank)]):
        raise Error(f"rank {rank} has ended before its first step{_reason(left, rank)}")


@atexit.register
def _depart():
    if dist.is_initialized():
        failure = getattr(sys, "last_value", None)  # the exception that ends the program
        with contextlib.suppress(RuntimeError):  # who had the store has ended
            left = _departures()
            left.set(str(dist.get_rank()), one_line(failure) if failure else "")
            left.add("count", 1)


def _cause():
    """Why a rank has ended, if one tells it within 3 s."""
    until = time.monotonic() + 3
    with contextlib.suppress(RuntimeError):
        left = _departures()
        while time.monotonic() < until:
            for rank in range(dist.get_world_size()):
                if left.check([str(rank)]):
                    return f"rank {rank} has ended{_reason(left, rank)}"
            time.sleep(0.05)
    return None


@contextlib.contextmanager
def telling_the_cause():
    """Around collectives with ranks of other pipelines, which fail when one of them has ended."""
    try:
        yield
    except RuntimeError as e:
        cause = _cause()
        if cause is None:
            raise
        raise Error(cause) from e


class Rendezvous:
    """The ranks of one pipeline: those of its process group and of their agreement domains."""

    def __init__(self, group, number, domain, stage_indices, options):
        """`number`: next_number() of the group. `domain`: the global ranks that run the same tasks as this one, itself
        included. `options`: by name, those that all ranks must give alike."""
        here = dist.get_rank()
        stages = ranks_of_group(group)
        self.domain = sorted(domain)
        mine = {"domain": self.domain, "number": next_number("domain", self.domain), "stages": sorted(stage_indices)}
        mine |= {"host": socket.gethostname(), "options": options}
        # The other ranks of a domain have groups of their own.
        of_stages = _meeting("stages", stages, number)
        for store in (of_stages, _of_domain(mine)):
            store.set(f"rank/{here}", json.dumps(mine))
        self.stages = [_told(of_stages, rank) for rank in stages]
        self.index = self.domain.index(here)
        for rank, told in zip(stages, self.stages):
            if len(told["domain"]) != len(self.domain) or told["domain"].index(rank) != self.index:
                raise ValueError(
                    f"domain: expected rank {rank} at place {self.index} of {len(self.domain)} ranks that run the "
                    f"same tasks, as rank {here}, got {told['domain']}"
                )
        all_told = {rank: _told(_of_domain(told), rank) for told in self.stages for rank in told["domain"]}
        self._ranks = sorted(all_told)
        _check_options(all_told)
        self.size = len(stages) * len(self.domain)
        self.node = stages.index(here) * len(self.domain) + self.index
        first = self.stages[0]
        self._leader = first["domain"][0]
        self._store = _of_domain(first)
        self.name = f"torch-{self._leader}-{first['number']}"
        if self.node == 0:
            hosts = {told["host"] for told in all_told.values()}
            self._store.set("host", "127.0.0.1" if len(hosts) == 1 else _own_address())
            self._store.set("secret", secrets.token_hex(32))
        self.host = self._of_leader("host").decode()

    def key_file(self):
        """A file with the key of the pipeline, to be removed once it is open."""
        secret = self._of_leader("secret")
        file, path = tempfile.mkstemp(prefix="rrfp-key-")  # only the owner may read it
        with os.fdopen(file, "wb") as out:
            out.write(secret)
        return path

    def look(self):
        """Raises if a rank of the pipeline has ended."""
        left = _departures()
        if left.add("count", 0) > 0:
            for rank in self._ranks:
                _check_here(left, rank)

    def publish(self, port):
        self._store.set("port", str(port))

    def find(self):
        return int(self._of_leader("port"))

    def _of_leader(self, name):
        return _value(self._store, name, self._leader, 60, "open the pipeline")


def _of_domain(told):
    return _meeting("domain", told["domain"], told["number"])


def _told(store, rank):
    return json.loads(_value(store, f"rank/{rank}", rank, store.timeout.total_seconds(), "reach its first step"))


def _check_options(all_told):
    (first, told), *others = sorted(all_told.items())
    for rank, its in others:
        for name in sorted(told["options"] | its["options"]):
            expected, got = (options.get(name) for options in (told["options"], its["options"]))
            if json.dumps(got) != json.dumps(expected):
                raise ValueError(f"{name}: expected {expected!r} on rank {rank}, as on rank {first}, got {got!r}")


def _value(store, key, rank, limit_s, action):
    """What the rank sets under the key when it does the action."""
    left = _departures()
    until = time.monotonic() + limit_s
    while not store.check([key]):
        _check_here(left, rank)
        if time.monotonic() > until:
            raise Error(f"rank {rank} did not {action} within {limit_s:.0f} s")
        time.sleep(0.01)
    return store.get(key)


def _own_address():
    """The address under which the others reach this machine."""
    master = os.environ.get("MASTER_ADDR", "")
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((master, 9))  # sends nothing
            return probe.getsockname()[0]
    except OSError:
        return socket.gethostbyname(socket.gethostname())
