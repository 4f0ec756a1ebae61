"""TorchServe's own vision handler and Captum explanations, with two changes: number of steps and image size.

The stock handler uses 15 steps and crops images to 224 x 224; the digits network reads 8 x 8 pixels, and all other
candidates use 64 steps.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from torch import Tensor
from ts.torch_handler import vision_handler


class ExplainHandler(vision_handler.VisionHandler):  # type: ignore[misc]
    """Explains class 0 (the handler's default) from a zero baseline (Captum's default)."""

    def initialize(self, context: Any) -> None:
        """Loads the network, and silences the two log lines per call, as our handler does."""
        logging.getLogger().setLevel(logging.WARNING)
        super().initialize(context)

    @staticmethod
    def image_processing(image: Any) -> Tensor:
        """Converts a grey image to float32 [1, 8, 8] in 0 to 1, scaled as the stock handler does."""
        return torch.from_numpy(np.asarray(image, np.float32) / np.float32(255))[None]

    def get_insights(self, tensor_data: Any, _: Any, target: int = 0) -> Any:
        """Returns attributions [batch, 1, 8, 8] as nested lists: the stock method without its print."""
        return self.ig.attribute(tensor_data, target=target, n_steps=64).tolist()
