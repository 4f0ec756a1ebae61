"""``python -m cutaway`` is the command ``cutaway``."""

from cutaway.console import main

main()
