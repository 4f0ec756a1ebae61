"""The entry point of the ``cutaway`` command. The base install is the client alone, without a command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say how to install it."""
    try:
        from cutaway import cli
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("typer", "rich"):
            raise
        print("the command line needs: pip install 'cutaway[cli]'", file=sys.stderr)
        raise SystemExit(2) from None
    cli.main()


if __name__ == "__main__":
    main()
