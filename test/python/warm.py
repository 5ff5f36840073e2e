"""Programs that begin with torch imported: forks of one process, because the import takes longer than most programs.

PYTHON takes the arguments of `python`; under `run.py` it is the program warm_python, which asks that process for a fork,
lends it its files, passes signals on and ends as the fork does. PYTHON_EXEC makes torchrun start its ranks so, too.
"""

import contextlib
import gc
import importlib
import json
import os
import pathlib
import random
import runpy
import select
import signal
import socket
import sys
import types

PYTHON = sys.executable


def start(modules):
    """Imports the modules and returns in the process of the tests. A fork gets here, too, and ends with its program."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which would begin a thread at once
    for module in modules:
        with contextlib.suppress(ImportError):  # which is for the tests to report
            importlib.import_module(module)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    name = f"rrfp-warm-python-{os.getpid()}"
    listener.bind(f"\0{name}")
    listener.listen()
    tests, held_by_tests = os.pipe()
    gc.freeze()  # so that a fork does not touch, and thereby copy, all objects as it ends
    if os.fork() != 0:
        os.close(tests)
        listener.close()
        global PYTHON
        os.environ["RRFP_WARM_PYTHON"] = name
        os.environ["PYTHON_EXEC"] = PYTHON = str(pathlib.Path(__file__).with_name("warm_python"))
        return
    os.close(held_by_tests)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        if tests in select.select([tests, listener], [], [])[0]:
            os._exit(0)
        connection = listener.accept()[0]
        if os.fork() == 0:
            listener.close()
            os.close(tests)
            _run_for(connection)
        connection.close()


def _run_for(connection):
    """Returns in no process: this one waits for a fork of its own, which runs the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    pid = os.fork()
    if pid == 0:
        connection.close()
        _run(files, **json.loads(request))
    for file in {0, 1, 2, *files}:
        os.close(file)
    process = os.pidfd_open(pid)
    while process not in select.select([process, connection], [], [])[0]:
        number = connection.recv(1)
        os.kill(pid, number[0] if number else signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    try:
        connection.send(status.to_bytes(4, "little"))
    except BrokenPipeError:  # warm_python was killed
        pass
    os._exit(0)


def _run(files, arguments, variables, folder):
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "OMP_NUM_THREADS" in variables and "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(int(variables["OMP_NUM_THREADS"]))
    if arguments[0] == "-u":
        del arguments[0]
        sys.stdout.reconfigure(write_through=True)
    program = arguments[0]
    if program == "-m":
        sys.path[0], sys.argv = folder, arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        sys.exit()
    main = types.ModuleType("__main__")
    if program == "-c":
        sys.path[0], sys.argv = "", ["-c", *arguments[2:]]
        code = compile(arguments[1], "<string>", "exec")
    else:
        main.__file__ = program
        sys.path[0], sys.argv = str(pathlib.Path(program).parent.absolute()), arguments
        code = compile(pathlib.Path(program).read_bytes(), program, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)
    sys.exit()
