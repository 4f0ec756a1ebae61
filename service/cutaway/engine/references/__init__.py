"""Reference attributions, computed a second time from raw hook outputs alone: one function for each method.

No code here is shared with Captum. A reference function takes the records of the hooks (`Evidence`), works in float64
on the host, and returns a `Reference`. That has tensors of the attribution's shape, by name. Unless it says otherwise,
tensors are `[batch, *features]`. It raises `MissingObservation` if the hooks did not record what its formula needs.
Functions that return points list the inputs at which a method must run the model. Checks compare these with the passes
that Captum ran.
"""
