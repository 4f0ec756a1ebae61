"""Real models, served: what to copy from when serving your own."""

from functools import partial

from cutaway.server.archive import builder

build = partial(
    builder.build, options={}, batch_size=16, max_batch_delay_ms=1, workers=1, response_timeout_s=60, force=True
)
"""Builds an archive, as `cutaway package` does; an archive that is there is replaced."""
