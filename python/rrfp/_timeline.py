"""Pictures of steps."""


class Timeline:
    """A picture of one step: a lane for each stage. `svg` is its text."""

    def __init__(self, svg):
        self.svg = svg

    def _repr_svg_(self):
        return self.svg

    def save(self, path):
        with open(path, "w") as file:
            file.write(self.svg)
