"""TorchServe's own vision handler with its own Captum explanations, but for the number of steps and the picture's size.

The stock handler takes 15 steps and cuts pictures to 224 x 224; the digits network reads 8 x 8 pixels, and 64 steps
are what the others take.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor
from ts.torch_handler import vision_handler


class ExplainHandler(vision_handler.VisionHandler):  # type: ignore[misc]
    """Explains class 0, the handler's default, from black, Captum's default."""

    def initialize(self, context: Any) -> None:
        """Load the network, and stop printing two lines for every call, as our handler does."""
        logging.getLogger().setLevel(logging.WARNING)
        super().initialize(context)

    @staticmethod
    def image_processing(image: Any) -> Tensor:
        """A grey picture, as float32 [1, 8, 8] from 0 to 1; the stock one scales in the same way."""
        return torch.from_numpy(np.asarray(image, np.float32) / np.float32(255))[None]

    def get_insights(self, tensor_data: Any, _: Any, target: int = 0) -> Any:
        """Nested lists of [batch, 1, 8, 8]: the stock method without its print."""
        return self.ig.attribute(tensor_data, target=target, n_steps=64).tolist()
