"""What the module raises."""

from __future__ import annotations

import re
from typing import Optional, Sequence, Tuple


class UsageError(ValueError):
    """The input is wrong. str() is one line that names the place, the allowed values and the nearest known name."""

    def __init__(self, text: str, message: str = "", file: str = "", line: int = 0, key: str = "",
                 allowed: Sequence[str] = (), nearest: str = "") -> None:
        super().__init__(text)
        self.message = message
        self.file = file  #: a path, "<scenario>" for a dictionary, or where on a command line ("--set")
        self.line = line  #: 0 where it is no file
        self.key = key
        self.allowed = list(allowed)
        self.nearest = nearest
        self.path: Optional[Tuple[str, ...]] = None  #: in a dictionary: the keys that lead to the place


class Refused(RuntimeError):
    """Megatron would refuse this configuration: a prediction would be of what cannot run. `check` tells every rule."""


class InternalError(RuntimeError):
    """A bug in pipewright."""


def path_at(text: str, line: int) -> Optional[Tuple[str, ...]]:
    """The keys above and in a line of json.dumps(..., indent=1)."""
    stack: list[Tuple[int, str]] = []
    for row in text.splitlines()[:line]:
        indent = len(row) - len(row.lstrip(" "))
        while stack and stack[-1][0] >= indent:
            stack.pop()
        found = re.match(r' *"((?:[^"\\]|\\.)*)":', row)
        if found:
            stack.append((indent, found[1]))
    return tuple(key for _, key in stack) or None
