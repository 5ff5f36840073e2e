"""Closes pipelines that a program leaves open, and ends forked children that return into one."""

import atexit
import os
import sys
import traceback
import weakref

from ._errors import Error
from ._modules import one_line

_open = weakref.WeakSet()


def close_at_exit(runtime):
    """Ends it while Python can still run its threads."""
    _open.add(runtime)


def why_ended(failure):
    """What other processes are told of a program that leaves its pipeline by this exception, or by none."""
    return "the program has ended" if failure is None or isinstance(failure, SystemExit) else one_line(failure)


@atexit.register
def _close_all():
    for runtime in list(_open):
        runtime.close(why_ended(getattr(sys, "last_value", None)))  # the exception that ends the program


def end_child(e):
    """Ends a child process, made with os.fork() by a function of the program, that has returned from this function or
    left it by the exception `e`. The child has only this thread, so it would wait for other threads of the pipeline.
    """
    code = 1
    if isinstance(e, SystemExit):
        code = 0 if e.code is None else e.code
        if not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    else:
        returned = Error("a child of os.fork() has returned into the pipeline: expected os._exit() or sys.exit()")
        traceback.print_exception(e or returned)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 0xFF)
