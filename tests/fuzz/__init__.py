"""Random models, random questions, and a slow reference that knows nothing of the engine.

graphs         a model as data, and the module that is made of it
drawing        random models
asking         random questions about a model
interpreter    runs a model as data, step by step, and knows every call and operator
ledger         what happens at each place: edits done by hand, the graph cut where a gradient is looked at
arithmetic     what each verb, slice, reduction and target makes of a tensor
reference      the answer that is expected, or the reasons for which there is none
comparing      the engine's answer beside it
"""
