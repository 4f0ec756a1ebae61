"""Readers of foreign bytes: each of them takes any bytes, and raises nothing but its own error.

`python -m tests.readers NAME SECONDS` (`make readers`) searches for bytes that break one, guided by what they reach;
``corpus/NAME`` holds what broke it once, and where the search begins. `test_readers` replays them.
"""
