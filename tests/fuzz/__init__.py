"""Random models, random questions, and a slow reference that knows nothing of the engine.

    graphs         a model as data, and the module that is made of it
    drawing        random models
    surveying                          what there is to ask about a model
    captures edits targets mistakes    random parts of a question; asking puts them together
    interpreter    runs a model as data, step by step, and knows every call and operator
    places         names, aliases, addresses, globs
    ledger         what happens at each place: edits done by hand, the graph cut where a gradient is looked at
    arithmetic     what each verb, slice, reduction and target makes of a tensor
    reference      the answer that is expected, or the reasons for which there is none
    comparing      the engine's answer beside it

`tests/fuzz/test_fuzz.py` runs 500 fixed examples; ``python -m tests.fuzz`` (`make fuzz`) runs new ones.
"""
