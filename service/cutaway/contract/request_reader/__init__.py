"""Reads requests from plain mappings: sections of a job, files of ``cutaway inspect --request``, short forms.

The fields and their types follow from the dataclasses of `cutaway.contract.requests`. The names of methods, targets and
so on are the contract's. A new field or a new method needs no change here.
"""
