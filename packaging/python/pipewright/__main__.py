"""The program `pipewright`, as the wheel installs it: python -m pipewright is the same."""

import sys

from . import _core


def main() -> int:
    return _core.main(["pipewright", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
