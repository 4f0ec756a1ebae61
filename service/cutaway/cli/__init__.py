"""The entry point of the ``cutaway`` command, also where the base install has no packages for a command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line, or prints how to install it."""
    try:
        from cutaway.cli import application
    except ModuleNotFoundError as failure:
        if (failure.name or "").partition(".")[0] not in ("typer", "rich", "yaml"):
            raise
        print("the command line needs: pip install 'cutaway[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    application.main()
