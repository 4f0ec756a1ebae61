"""The tables of the documentation, from those of the code: ``python -m tools.documents`` writes them (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path
from types import ModuleType

from captum import attr
from captum import metrics as captum_metrics
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from cutaway.contract import errors, requests
from cutaway.contract.requests import Attribution
from cutaway.contract.requests.fields import CAPTUM_NAMES, field_advice
from cutaway.contract.results import Cause
from cutaway.engine.methods.captum_call import TABLE
from cutaway.engine.methods.spec import Method
from cutaway.jobs import spec
from cutaway.server.settings import Settings
from tools import commands, contract, json_fields, metrics

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
        "captum classes": _captum_classes(),
        "captum arguments": _captum_arguments(),
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


_SHARED = {item.name for item in fields(Attribution)}
_BASE = "a base class; ours is `ca.Attribution`"
_OF_JOBS = "the tables and the report of a job: [batch.md](batch.md)"
_REMOTE = "none: Cutaway serves the model itself"
_NOT_METHODS = {
    "NoiseTunnel": "`noise=ca.NoiseTunnel(...)` of any attribution",
    "infidelity": "`metrics=(ca.Infidelity(),)` of an attribution",
    "sensitivity_max": "`metrics=(ca.SensitivityMax(),)` of an attribution",
    "LLMAttribution": "`target=ca.SequenceLogProbability(...)`: [language-models.md](language-models.md#why-this-text)",
    "LLMGradientAttribution": "the same target, with a gradient method at the embedding",
    "LLMAttributionResult": "`AttributionResult.tokens`",
    "LimeBase": "`ca.Lime`; a request holds no functions",
    "DataLoaderAttribution": "a job: [batch.md](batch.md)",
    "TokenReferenceBase": '`baselines={"input_ids": ca.TokenId(0)}`',
    "InterpretableEmbeddingBase": "a layer method at the embedding; no module is replaced",
    "ImageMaskInput": "`masks` of the method, or `ca.Superpixels`",
    "TextTokenInput": "the text, and a layer method at the embedding",
    "TextTemplateInput": "the text, and `masks` of the method",
    "ProductBaselines": "`baselines` of `ca.GradientShap` and of `ca.DeepLiftShap`",
    **dict.fromkeys(("Attribution", "GradientAttribution", "PerturbationAttribution", "NeuronAttribution"), _BASE),
    "LayerAttribution": f"{_BASE}; for `interpolate` see [pictures](#pictures)",
    "InterpretableInput": "a base class",
    **dict.fromkeys(("Summarizer", "SummarizerSingleTensor", "ClassSummarizer", "Count", "MSE", "Max"), _OF_JOBS),
    **dict.fromkeys(("Mean", "Min", "StdDev", "Sum", "Var"), _OF_JOBS),
    **dict.fromkeys(("RemoteLLMAttribution", "RemoteLLMProvider", "VLLMProvider"), _REMOTE),
}
"""What stands for the classes and functions of Captum that are no method of ours."""


def _captum_classes() -> Iterator[str]:
    yield "| Captum | Cutaway | its own arguments |"
    yield "|---|---|---|"
    for name in sorted({*_public(attr), "infidelity", "sensitivity_max"}, key=str.lower):
        ours = {kind.__name__: kind for kind in TABLE}.get(name)
        own = [] if ours is None else [f"`{item.name}`" for item in fields(ours) if item.name not in _SHARED]
        yield f"| `{name}` | {_NOT_METHODS[name] if ours is None else f'`ca.{name}`'} | {', '.join(own)} |"


def _public(module: ModuleType) -> list[str]:
    """The classes of a module that are documented: those with a name of their own."""
    return [name for name, value in vars(module).items() if inspect.isclass(value) and not name.startswith("_")]


def _captum_arguments() -> Iterator[str]:
    yield "| Captum | Cutaway | of |"
    yield "|---|---|---|"
    found: dict[tuple[str, str], list[str]] = {}
    metrics_of = {"Infidelity": captum_metrics.infidelity, "SensitivityMax": captum_metrics.sensitivity_max}
    kinds = [*TABLE, requests.NoiseTunnel, requests.Infidelity, requests.SensitivityMax]
    for kind in sorted(kinds, key=lambda kind: kind.__name__):
        theirs = getattr(attr, kind.__name__, None)
        functions = (theirs.__init__, theirs.attribute) if theirs else (metrics_of[kind.__name__],)
        names = {name for function in functions for name in inspect.signature(function).parameters}
        for name in names - {"self", "kwargs"}:
            found.setdefault((name, _ours(name, {item.name for item in fields(kind)})), []).append(kind.__name__)
    for (name, ours), methods in sorted(found.items(), key=lambda row: (row[0][0].lower(), -len(row[1]))):
        every = f"{len(methods)} classes" if len(methods) > _FEW else ", ".join(methods)
        yield f"| `{name}` | {ours} | {every} |"


_FEW = 4
_OF_REQUEST = {"inputs": "the inputs of the request", "attributions": "those of the attribution that holds the metric"}


def _ours(name: str, known: set[str]) -> str:
    """What a request has in the place of an argument of Captum."""
    if name in _OF_REQUEST:
        return _OF_REQUEST[name]
    ours = name if name in known else CAPTUM_NAMES.get(name, "")
    return f"`{ours}`" if ours in known else field_advice(name, known)


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
