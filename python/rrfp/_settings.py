"""Settings of a program as keys of a job."""

import json
import math
import re

from ._errors import Error


def text_of(value):
    """As the value of a job's key."""
    return value if isinstance(value, str) else json.dumps(value)


def check_settings(settings):
    if not isinstance(settings, (dict, type(None))):
        raise TypeError(f"settings: expected a dict with keys of a job, got {type(settings).__name__}")
    for key, value in (settings or {}).items():
        if not is_value(value):
            raise TypeError(
                f'settings["{key}"]: expected a number, a text, True or False, or a list of them, got {described(value)}'
            )


def is_value(value):
    if isinstance(value, (list, tuple)):
        return all(is_value(one) for one in value)
    if isinstance(value, int):
        return -(2**63) <= value < 2**63
    return isinstance(value, str) or isinstance(value, float) and math.isfinite(value)


def described(value):
    return str(value) if isinstance(value, (int, float)) else type(value).__name__


def check_flag(name, value):
    try:
        is_flag = hasattr(value, "__bool__") and isinstance(bool(value), bool)
    except (RuntimeError, ValueError):  # of several elements
        is_flag = False
    if not is_flag:
        raise TypeError(f"{name}: expected True or False, got {type(value).__name__}")


# A part of a program runs each task once and whole.
_of_tasks = {"dispatch.weight_pieces": 1, "dispatch.early_forwards": 0}


def with_whole_tasks(settings):
    for key, value in _of_tasks.items():
        if text_of(settings.get(key, value)) != text_of(value):
            raise ValueError(f'settings["{key}"]: expected {value}: a part runs each task once and whole, got {settings[key]}')
    return {**_of_tasks, **settings}


def called(function, settings, arguments=None):
    """Calls a function that gets the settings as lines; its error names settings where the runtime names options.

    arguments: by the keys that the program gave by another name, that name.
    """
    try:
        return function([f"{key}={text_of(value)}" for key, value in settings.items()])
    except Error as e:
        message = str(e)
        for key, value in settings.items():
            name = (arguments or {}).get(key, f'settings["{key}"]')
            message = message.replace(f"--set {key}={text_of(value)}", name)
            message = re.sub(rf'--set "{re.escape(key)}=(?:[^"\\]|\\.)*"', lambda _: name, message)
        raise Error(message, e.kind, e.exit_code) from e.__cause__
