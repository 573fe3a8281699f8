"""Entry point of the command `vitling`. Its imports take a moment, in which Ctrl-C must not print a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from vitling.cli import main as run_command
    except KeyboardInterrupt:
        print("Error: Interrupted.", file=sys.stderr)
        sys.exit(130)
    run_command()


if __name__ == "__main__":
    main()
