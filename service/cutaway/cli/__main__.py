"""``python -m cutaway.cli`` is the command ``cutaway``."""

from cutaway.cli import main

main()
