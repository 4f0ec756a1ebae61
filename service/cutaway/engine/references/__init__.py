"""The attributions again, from raw hook outputs and from nothing else: one function a method.

No line here is shared with Captum. Each function reads what the hooks saw (`Evidence`), works in float64, and states
the identity that it uses. Functions that return points say which a method must visit, so that a check can hold the
passes that Captum ran against the passes it should have run.
"""
