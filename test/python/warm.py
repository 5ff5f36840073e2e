"""Programs that begin with torch imported: forks of one process, because the import takes longer than most programs.

PYTHON takes the arguments of `python`; under `run.py` it is the program warm_python, which asks that process for a fork,
lends it its files, passes signals on and ends as the fork does. PYTHON_EXEC makes torchrun start its ranks so, too.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import marshal
import os
import pathlib
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import types

PYTHON = sys.executable
# What most programs import, by themselves or as torch makes an optimizer.
MODULES = ["torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp", "torch.distributed.pipelining"]
MODULES += ["torch.distributed.run", "torch.distributed.tensor.parallel"]
_kept = []  # in a cycle that is never collected: the modules that each fork has, which none clears as it ends
_others = []  # whose input is open until the tests end


def start(modules):
    """Imports the modules and returns in the process of the tests. A fork gets here, too, and ends with its program."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, which would begin a thread at once
    atexit.register(_keep_modules)  # before those of the modules and of programs, so that it is called after them
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
    # A fork ends before the destructors of the libraries that are loaded by now: torch's take longer than most programs.
    libc = ctypes.CDLL(None)
    libc.on_exit(libc._exit, None)
    libc.__cxa_atexit(libc.fflush, None, None)  # which is called before it
    _kept.extend([_kept, *sys.modules.values()])
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve(listener, tests)


def _serve(listener, tests):
    """Returns in no process: forks for each connection, which sends the request and then signals, and gets the status."""
    pids, connections = {}, {}  # of programs that run, by a file that tells their end
    while True:
        ready = select.select([tests, listener, *pids, *connections.values()], [], [])[0]
        if tests in ready:
            for pid in pids.values():
                os.kill(pid, signal.SIGKILL)
            os._exit(0)
        for process, pid in list(pids.items()):
            connection = connections.get(process)
            if process in ready:
                status = os.waitpid(pid, 0)[1]
                os.close(process)
                del pids[process]
                if connection:
                    with contextlib.suppress(BrokenPipeError):  # warm_python was killed
                        connection.send(status.to_bytes(4, "little"))
                    connections.pop(process).close()
            elif connection in ready:
                number = connection.recv(1)
                os.kill(pid, number[0] if number else signal.SIGKILL)
                if not number:
                    connections.pop(process).close()
        if listener in ready:
            connection = listener.accept()[0]
            request, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            pid = os.fork() if request else None
            if pid == 0:
                for file in (tests, *pids):
                    os.close(file)
                for other in (listener, connection, *connections.values()):
                    other.close()
                _run(files, *marshal.loads(request))
            for file in files:
                os.close(file)
            if request:
                process = os.pidfd_open(pid)
                pids[process], connections[process] = pid, connection


def start_other(variables):
    """Starts another such process, with these variables. Returns those of the programs that are its forks."""
    pipe = subprocess.PIPE
    command = [sys.executable, __file__, *MODULES]
    _others.append(subprocess.Popen(command, env=os.environ | variables, stdin=pipe, stdout=pipe, text=True))
    return {"RRFP_WARM_PYTHON": _others[-1].stdout.readline().strip(), "PYTHON_EXEC": PYTHON}


def _keep_modules():
    """As the interpreter is about to do, but without clearing them."""
    kept, cleared = set(map(id, _kept)), {"__main__", *sys.stdlib_module_names}  # others may need these for their ends
    for name, module in sys.modules.items():
        if id(module) in kept and name.partition(".")[0] not in cleared:
            sys.modules[name] = None


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


if __name__ == "__main__":
    start(sys.argv[1:])
    print(os.environ["RRFP_WARM_PYTHON"], flush=True)
    sys.stdin.read()
    os._exit(0)
