"""From the measured cost of a call to a fleet: a simulation, checked against this machine, and docs/scaling.md."""
