"""A question for the shell."""

from __future__ import annotations

import shlex
from urllib.parse import quote

from google.protobuf import json_format

from cutaway.programs.question import FILE, Question


def program(question: Question) -> str:
    """Returns the command."""
    url = f"{question.address.rstrip('/')}/v1/models/{quote(question.request.model)}:inspect"
    token = ' \\\n  -H "Authorization: Bearer $CUTAWAY_TOKEN"' if question.has_token else ""
    data = f"@{FILE}" if question.in_file else shlex.quote(json_format.MessageToJson(question.message, indent=None))
    return f"curl -s {shlex.quote(url)} -H 'Content-Type: application/json'{token} \\\n  --data {data}\n"
