"""The minimal TorchServe handler: answers every row with a constant of configured size."""

from __future__ import annotations

from typing import Any


class EchoHandler:
    """Returns constant bytes."""

    def initialize(self, context: Any) -> None:
        """Allocates the reply."""
        self.reply = bytes(int(context.model_yaml_config["replyBytes"]))

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """Returns one reply per row."""
        return [self.reply] * len(data)
