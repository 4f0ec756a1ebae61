"""The tables of the documentation, from those of the code: ``python -m tools.documents`` writes them (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cutaway.contract import errors
from cutaway.contract.requests import Attribution
from cutaway.contract.results import Cause
from cutaway.engine.methods.captum_call import TABLE
from cutaway.engine.methods.spec import Method
from cutaway.jobs import spec
from cutaway.server.settings import Settings
from tools import captum_names, commands, contract, json_fields, metrics

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    DOCS / "architecture.md": ("decisions",),
    DOCS / "checks.md": ("methods", "causes"),
    DOCS / "errors.md": ("errors",),
    DOCS / "from-captum.md": ("captum classes", "captum arguments"),
    DOCS / "batch.md": ("job",),
    DOCS / "settings.md": ("settings",),
    DOCS / "metrics.md": ("metrics", "job metrics"),
    DOCS / "contract.md": ("contract",),
    DOCS / "command-line.md": ("commands", *(f"json {command}" for command in json_fields.DOCUMENTS)),
}
"""Each page, and its tables."""

SOURCE = re.compile(r"(?:arXiv|doi):[^\s,;]*[^\s,;.]")


@cache
def tables() -> dict[str, str]:
    """Each table, by its name."""
    every = {
        "decisions": _decisions(),
        "methods": _methods(),
        "causes": _causes(),
        "errors": _errors(),
        "captum classes": captum_names.classes(),
        "captum arguments": captum_names.arguments(),
        "job": _job(),
        "settings": _settings(),
        "metrics": metrics.gateway_table(),
        "job metrics": metrics.job_table(),
        "commands": commands.sections(),
        "contract": contract.sections(),
        **{f"json {command}": json_fields.table(kind) for command, kind in json_fields.DOCUMENTS.items()},
    }
    return {name: "\n".join(rows) for name, rows in every.items()}


def _decisions() -> Iterator[str]:
    for path in sorted((DOCS / "decisions").glob("*.md")):
        number, title = path.read_text("utf-8").partition("\n")[0].removeprefix("# ").split(" ", 1)
        yield f"- [{number}](decisions/{path.name}) {title}"


def _methods() -> Iterator[str]:
    yield "| method | must equal, from raw hooks | passes | tolerance: float64, float32, bfloat16, float16 | source |"
    yield "|---|---|---|---|---|"
    for kind, method in sorted(TABLE.items(), key=lambda row: row[0].__name__):
        tolerance = ", ".join(f"{each:g}" for each in method.tolerances)
        yield f"| {kind.__name__} | {_cell(method)} | {_passes(method)} | {tolerance} | {source(kind)} |"


def _cell(method: Method) -> str:
    return method.formula.replace("|", "\\|")


def _passes(method: Method) -> str:
    return "Captum's or separate" if method.reads_captum else "separate"


def source(kind: type[Attribution]) -> str:
    """Where the method comes from, as its own documentation, or that of what it is a kind of, cites it."""
    for each in kind.__mro__:
        found = SOURCE.findall(" ".join((each.__doc__ or "").split()))
        if found:
            return ", ".join(dict.fromkeys(found))
    return ""


def _causes() -> Iterator[str]:
    yield "| cause | what happened |"
    yield "|---|---|"
    text = inspect.getsource(Cause)
    for name, meaning in re.findall(r'^    (\w+) = "\w+"\n    """(.*?)"""', text, re.MULTILINE | re.DOTALL):
        yield f"| `{name}` | {' '.join(meaning.split())} |"


def _errors() -> Iterator[str]:
    yield "| reason | status | Python | retry | meaning |"
    yield "|---|---|---|---|---|"
    for reason in errors.Reason:
        raised = type(errors.error(reason, "")).__name__
        yield f"| `{reason}` | {reason.code.name} | `{raised}` | {_retry(reason)} | {reason.meaning} |"


def _retry(reason: errors.Reason) -> str:
    if not reason.retryable:
        return "no"
    after_s = errors.RETRY_AFTER_S.get(reason)
    if after_s is not None:
        return f"after {after_s:g} s"
    return "with more time" if reason.code == errors.Code.DEADLINE_EXCEEDED else "yes"


SECTIONS: dict[str, type[BaseModel]] = {
    "model": spec.Model,
    "data": spec.Data,
    "inputs.NAME": spec.TensorColumn,
    "inputs.raw": spec.RawColumn,
    "id": spec.NamedColumn,
    "label": spec.NamedColumn,
    "output": spec.Output,
    "engine (local)": spec.Local,
    "engine (service)": spec.Service,
    "engine (ray)": spec.Ray,
}


def _job() -> Iterator[str]:
    yield "| field | default | meaning |"
    yield "|---|---|---|"
    alone = {
        name: field for name, field in spec.Job.model_fields.items() if name in ("target", "request", "max_bad_rows")
    }
    for section, own in [*((name, kind.model_fields) for name, kind in SECTIONS.items()), ("", alone)]:
        for name, field in own.items():
            if name != "kind":
                yield f"| `{f'{section}.{name}'.lstrip('.')}` | {_default(field)} | {_meaning(field)} |"


def _settings() -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    for name, field in Settings.model_fields.items():
        yield f"| `CUTAWAY_{name.upper()}` | {_default(field)} | {_meaning(field)} |"


def _default(field: FieldInfo) -> str:
    if field.default is PydanticUndefined:
        return "must be given"
    return "" if field.default in (None, "", (), {}) else f"`{str(field.default).lower()}`"


def _meaning(field: FieldInfo) -> str:
    return (field.description or "").replace("|", "\\|")


def written(page: str) -> str:
    """``page`` with its tables as they must be."""
    for name, table in tables().items():
        between = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page = between.sub(lambda match, table=table: f"{match[1]}{table}\n{match[2]}", page)  # type: ignore[misc]
    return page


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(written(each.read_text("utf-8")), "utf-8")
