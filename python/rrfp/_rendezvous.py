"""The store of torchrun, through which processes find the port of the first one."""

import datetime
import os
import time

from torch.distributed import TCPStore

_made = 0  # pipelines of this process; all processes open theirs in the same order


class AgentStore:
    def __init__(self, host, port, seconds):
        global _made
        # The store outlives the processes: those that torchrun starts again have keys of their own.
        self._key = f"rrfp/rendezvous/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_made}"
        _made += 1
        self._name = f"the store of torchrun at {host}:{port}"
        self._until = time.monotonic() + seconds
        self._store = self._guarded(lambda: TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=datetime.timedelta(seconds=seconds)))

    def publish(self, port):
        self._guarded(lambda: self._store.set(self._key, str(port)))

    def find(self):
        while not self._guarded(lambda: self._store.check([self._key])):
            if time.monotonic() > self._until:
                raise RuntimeError(f"{self._name}: node 0 did not publish its port in time")
            time.sleep(0.02)
        return int(self._guarded(lambda: self._store.get(self._key)))

    def _guarded(self, work):
        try:
            return work()
        except Exception as e:
            raise RuntimeError(f"{self._name}: {str(e).splitlines()[0]}") from e
