"""Pipelines that a program leaves open."""

import atexit
import weakref

_open = weakref.WeakSet()


def close_at_exit(pipeline):
    """Ends it while Python can still run its threads."""
    _open.add(pipeline)


@atexit.register
def _close_all():
    for pipeline in list(_open):
        pipeline.close()
