"""How the runtime says that a pipeline ended."""


class Error(RuntimeError):
    """Why a pipeline ended or refused to begin, in one line that names the stage.

    `kind` is "bad_input", "failed", "node_lost" or "interrupted"; `exit_code` is what rrfp-node would end
    with. `__cause__` is the exception of the stage, if a function of this process raised one. A KeyboardInterrupt
    or SystemExit of such a function is raised itself.
    """

    def __init__(self, message, kind="failed", exit_code=1):
        super().__init__(message)
        self.kind = kind
        self.exit_code = exit_code

    def __reduce__(self):
        return Error, (str(self), self.kind, self.exit_code)
