"""A question for the shell."""

from __future__ import annotations

import shlex
from urllib.parse import quote

from google.protobuf import json_format

from cutaway.programs.question import FILE, Question

_LONGEST = 100_000
"""A longer argument is refused by Linux, which allows 128 KiB."""


def program(question: Question) -> str:
    """Returns the command."""
    url = f"{question.address.rstrip('/')}/v1/models/{quote(question.request.model)}:inspect"
    token = ' \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"' if question.has_token else ""
    text = shlex.quote(json_format.MessageToJson(question.message, indent=None))
    data = f"@{FILE}" if question.in_file or len(text) > _LONGEST else text
    return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{token} \\\n  --data {data}\n"
