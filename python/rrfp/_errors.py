"""How the runtime says that a pipeline ended."""


class Error(RuntimeError):
    """Says in one line why a pipeline ended or refused to start, and names the stage.

    `kind` is "bad_input", "failed", "node_lost" or "interrupted"; `exit_code` is the exit code that rrfp-node would
    have. If a function in this process raised an exception, `__cause__` is that exception. A KeyboardInterrupt or
    SystemExit of such a function is raised itself.
    """

    def __init__(self, message, kind="failed", exit_code=1):
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code

    def __reduce__(self):
        return Error, (str(self), self.kind, self.exit_code)
