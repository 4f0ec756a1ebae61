"""The least that a TorchServe handler can do: answer every row with the same bytes, as many as its archive says."""

from __future__ import annotations

from typing import Any


class EchoHandler:
    """Computes nothing."""

    def initialize(self, context: Any) -> None:
        """Make the reply."""
        self.reply = bytes(int(context.model_yaml_config["replyBytes"]))

    def handle(self, data: list[Any], context: Any) -> list[bytes]:
        """One reply a row."""
        return [self.reply] * len(data)
