"""Every method on every architecture: what is asked, and what Captum answers when it is called by hand.

asking     the explanations that an architecture can be asked for
byhand     the same, from Captum, as its documentation uses it
matrix     architectures x methods x data types x batch sizes x checks, over gRPC
healthy    every method on models in which nothing is wrong: whether verdicts cry wolf
expected   the few combinations in which Captum is wrong, or there is nothing to say, and why
"""
