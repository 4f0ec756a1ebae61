"""Reads requests from plain mappings, such as YAML gives them: the sections ``request`` and ``target`` of a job, the
file of ``cutaway inspect --request``, and the short forms of the command line.

Which fields there are, and their types, follows from the dataclasses of `cutaway.contract.requests`; the names of methods,
targets and so on are the contract's. A new field or a new method needs no change here.
"""
