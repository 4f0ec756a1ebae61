"""All healthy models."""

from __future__ import annotations

from tests.matrix.healthy_models.hard import HARD
from tests.matrix.healthy_models.images import IMAGES
from tests.matrix.healthy_models.model import Healthy
from tests.matrix.healthy_models.sequences import SEQUENCES
from tests.matrix.healthy_models.vectors import VECTORS
from tests.matrix.healthy_models.wirings import WIRINGS

HEALTHY: tuple[Healthy, ...] = (*VECTORS, *WIRINGS, *IMAGES, *SEQUENCES, *HARD)
