"""Pictures of steps."""


def check_step(step):
    if step is not None and (isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 2**63):
        raise ValueError(f"step: expected the number of a step, or None, got {step!r}")


def check_reason(why):
    if not isinstance(why, str):
        raise TypeError(f"hang_report(): expected a text, got {type(why).__name__}")


class Timeline:
    """A picture of one step: a lane for each stage. `svg` is its text."""

    def __init__(self, svg):
        self.svg = svg

    def _repr_svg_(self):
        return self.svg

    def save(self, path):
        with open(path, "w") as file:
            file.write(self.svg)
