"""The tables of the documentation, from those of the code: ``python -m tools.documents`` writes them (`make docs`)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

from captum import attr, concept, influence, robust
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
_OF_JOBS = "none: a job writes every row to a table, whose library has these: [batch.md](batch.md)"
_REMOTE = "none: Cutaway serves the model itself"
_INFLUENCE = "`influence=ca.Influence(..., method={!r})`: [concepts.md](concepts.md)"
_OF_INFLUENCE = "tests/unit/engine/test_influence.py"
_ATTACK = "`attacks=[{}]`: [attacks.md](attacks.md)"
_OF_ATTACKS = "tests/unit/engine/test_attacks.py"
_OF_CONCEPTS = "tests/unit/engine/test_concepts.py"
_LLM = "`llm_attribution=ca.LLMAttribution()` of {}: [language-models.md](language-models.md#why-this-text)"
_OF_LLM = "teacher-forced log-probabilities of raw hooks", "tests/unit/worker/test_llm_attribution.py"
_BESIDE = {
    "NoiseTunnel": (
        "`noise=ca.NoiseTunnel(...)` of any attribution",
        "the method's reference on the recorded noisy inputs",
        "tests/unit/engine/test_plain_captum.py",
    ),
    "infidelity": (
        "`metrics=(ca.Infidelity(),)` of an attribution",
        "its equation, by hand",
        "tests/unit/engine/test_quality_metrics.py",
    ),
    "sensitivity_max": (
        "`metrics=(ca.SensitivityMax(),)` of an attribution",
        "its equation, by hand",
        "tests/unit/engine/test_quality_metrics.py",
    ),
    "LLMAttribution": (_LLM.format("a method of perturbations"), *_OF_LLM),
    "LLMGradientAttribution": (_LLM.format("a method of a layer"), *_OF_LLM),
    "TCAV": (
        "`concepts=ca.TCAV(...)`: [concepts.md](concepts.md)",
        "a fit of our own, and signs and means of raw hooks' derivatives",
        _OF_CONCEPTS,
    ),
    "CAV": ("`vectors=True` of `ca.TCAV`", "the direction of a fit of our own", _OF_CONCEPTS),
    "TracInCP": (_INFLUENCE.format("tracin"), "products of raw gradients, row by row", _OF_INFLUENCE),
    "TracInCPFast": (_INFLUENCE.format("tracin_fast"), "products of raw gradients, row by row", _OF_INFLUENCE),
    "TracInCPFastRandProj": (
        _INFLUENCE.format("tracin_projected"),
        "raw gradients, projected by the numbers drawn again",
        _OF_INFLUENCE,
    ),
    "SimilarityInfluence": (_INFLUENCE.format("cosine"), "likeness of what raw hooks saw", _OF_INFLUENCE),
    "NaiveInfluenceFunction": (
        _INFLUENCE.format("influence_function"),
        "raw gradients through a Hessian of raw gradients",
        _OF_INFLUENCE,
    ),
    "ArnoldiInfluenceFunction": (
        _INFLUENCE.format("arnoldi"),
        "raw gradients through a Krylov space of our own",
        _OF_INFLUENCE,
    ),
    "FGSM": (_ATTACK.format("ca.FGSM(0.1)"), "signs of raw gradients", _OF_ATTACKS),
    "PGD": (_ATTACK.format("ca.PGD(0.1)"), "steps along raw gradients, its ball and bounds", _OF_ATTACKS),
    "MinParamPerturbation": (
        _ATTACK.format("ca.FGSM(search=ca.MinParamPerturbation(...))"),
        "the value below, tried again",
        _OF_ATTACKS,
    ),
}
"""What stands for the algorithms of Captum that are no attribution method, what it is checked against, and its test."""

_NOT_METHODS = {
    "AttackComparator": "several `attacks` of a request, each with its own check: [attacks.md](attacks.md)",
    "LLMAttributionResult": "`AttributionResult.tokens`",
    "LimeBase": "none: a request holds no functions; `ca.Lime` is its only kind",
    "DataLoaderAttribution": "a job: [batch.md](batch.md)",
    "TokenReferenceBase": '`baselines={"input_ids": ca.TokenId(0)}`',
    "InterpretableEmbeddingBase": "a layer method at the embedding; no module is replaced",
    "configure_interpretable_embedding_layer": "a layer method at the embedding; no module is replaced",
    "remove_interpretable_embedding_layer": "a layer method at the embedding; no module is replaced",
    "ImageMaskInput": "`masks` of the method",
    "TextTokenInput": "the text, and a layer method at the embedding",
    "TextTemplateInput": "the text, and `masks` of the method",
    "ProductBaselines": "none: it draws anew in each call, and a verdict needs the same baselines; send what was drawn",
    **dict.fromkeys(("Attribution", "GradientAttribution", "PerturbationAttribution", "NeuronAttribution"), _BASE),
    "LayerAttribution": f"{_BASE}; for `interpolate` see [pictures](#pictures)",
    "InterpretableInput": "a base class",
    **dict.fromkeys(("ConceptInterpreter", "DataInfluence", "TracInCPBase", "Perturbation"), "a base class"),
    "Concept": "`ca.ConceptExamples`",
    "Classifier": "`classifier` of `ca.TCAV`; a request holds no functions",
    "DefaultClassifier": '`classifier="sgd"` of `ca.TCAV`',
    "infidelity_perturb_func_decorator": "none: a request holds no functions",
    "visualization": "`result.plot()`: [pictures](#pictures)",
    **dict.fromkeys(("Summarizer", "SummarizerSingleTensor", "ClassSummarizer", "CommonStats", "StatValue"), _OF_JOBS),
    **dict.fromkeys(("Count", "MSE", "Max", "Mean", "Min", "StdDev", "Sum", "Var"), _OF_JOBS),
    **dict.fromkeys(("RemoteLLMAttribution", "RemoteLLMProvider", "VLLMProvider"), _REMOTE),
}
"""What stands for all other public names of Captum, or why nothing does."""

_TESTS = [Path("tests/unit/engine") / f"test_{name}.py" for name in (
    "plain_captum", "formulas_by_hand", "grad_cam_channels", "neurons", "deeplift", "expected_gradients"
)]  # fmt: skip


def captum_names() -> set[str]:
    """Every public name of Captum's, and Arnoldi's class, which Captum documents and does not export."""
    modules = (attr, concept, influence, captum_metrics, robust)
    return {"ArnoldiInfluenceFunction", *(name for module in modules for name in module.__all__)}


def _captum_classes() -> Iterator[str]:
    yield "| Captum | Cutaway | its own arguments | checked against | test |"
    yield "|---|---|---|---|---|"
    methods = {kind.__name__: kind for kind in TABLE}
    for name in sorted(captum_names(), key=str.lower):
        ours, own, against, test = _NOT_METHODS.get(name, ""), "", "", ""
        if name in _BESIDE:
            ours, against, test = _BESIDE[name]
        elif kind := methods.get(name):
            ours, against = f"`ca.{name}`", _cell(TABLE[kind])
            own = ", ".join(f"`{item.name}`" for item in fields(kind) if item.name not in _SHARED)
            test = next(
                str(file) for file in _TESTS if re.search(rf"\b{name}\b", (DOCS.parent / file).read_text("utf-8"))
            )
        yield f"| `{name}` | {ours} | {own} | {against} | {test and f'`{test}`'} |"


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
