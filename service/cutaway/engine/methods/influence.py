"""Captum's influence classes on passes of ours: which training rows made a prediction.

Captum reads only the first tensor of a training row, and SimilarityInfluence fails on a single layer; so its data sets
hold numbers of rows, and the model runs on what they stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any, NamedTuple

import torch
from captum.influence import NaiveInfluenceFunction, SimilarityInfluence, TracInCP, TracInCPFast, TracInCPFastRandProj
from captum.influence._core import arnoldi_influence_function
from captum.influence._core.similarity_influence import cosine_similarity, euclidean_distance
from captum.influence._utils import common
from captum.influence._utils.nearest_neighbors import NearestNeighbors
from torch import Tensor, nn

from cutaway.contract.requests import Influence, InfluenceMethod
from cutaway.engine.model.session import ProcessSetting

MOST_ROWS = 16
"""The most training rows of a pass of Captum's: it keeps the gradients of all of them."""

LEAST_EIGENVALUE = 1e-5
"""Damped eigenvalues of a Hessian that are not larger are left out. Captum's default of the naive function."""

Scores = tuple[Tensor, Tensor | None]
"""The scores [rows, training rows], and how much each training row helps itself, [training rows]."""


def _fused_attention() -> tuple[bool, ...]:
    backends = torch.backends.cuda
    return backends.flash_sdp_enabled(), backends.mem_efficient_sdp_enabled(), backends.cudnn_sdp_enabled()


def _set_fused_attention(enabled: tuple[bool, ...]) -> None:
    backends = torch.backends.cuda
    setters = backends.enable_flash_sdp, backends.enable_mem_efficient_sdp, backends.enable_cudnn_sdp
    for enable, value in zip(setters, enabled):
        enable(value)


# Fused attention has no second derivative, on CPUs either.
NO_FUSED_ATTENTION: ProcessSetting[tuple[bool, ...]] = ProcessSetting(
    _fused_attention, _set_fused_attention, value=(False, False, False)
)


class Rows(NamedTuple):
    """The rows that Captum computes influence of, and the model that reads them.

    Attributes:
        run: returns the logits of rows by their numbers; the training rows are the first.
        layer: the module that is compared, or whose parameters count.
        module: the whole model.
        parameters: those that are differentiated, by their names in ``module``.
        labels: the classes of all rows; empty where none are needed.
        training: the number of training rows.
        asked_rows: the number of the request's rows, behind them.
        rates: the learning rate of each checkpoint.
        load: puts the weights of a checkpoint, by its number, into the model; without any its own.
        give_way: lets other requests run between two batches.
        least: the norm of a new vector at which Arnoldi's iteration ends.
        batch: the rows of a pass behind a Hessian, or whose gradients are kept at once.
    """

    run: Callable[[Tensor], Tensor]
    layer: nn.Module
    module: nn.Module
    parameters: Mapping[str, nn.Parameter]
    labels: Tensor
    training: int
    asked_rows: int
    rates: Sequence[float] = (1.0,)
    load: Callable[[int], object] = lambda _: None
    give_way: Callable[[], object] = lambda: None
    least: float = 0.0
    batch: int = MOST_ROWS

    @property
    def asked(self) -> Tensor:
        """The numbers of the request's rows."""
        return torch.arange(self.training, self.training + self.asked_rows)

    @property
    def labelled(self) -> tuple[Tensor, Tensor]:
        """The request's rows with their labels, as Captum takes them."""
        return self.asked, self.labels[self.training :]

    @property
    def data(self) -> _Data:
        """The training rows with their labels."""
        return _Data(self)

    @property
    def tracing(self) -> dict[str, Any]:
        """The arguments that TracIn's classes have in common."""

        def load(_: object, number: int) -> float:
            self.load(number)
            return self.rates[number]

        return {"checkpoints": [*range(len(self.rates))], "checkpoints_load_func": load, "batch_size": self.batch}


class _Data(torch.utils.data.TensorDataset):
    """The numbers of training rows, with their labels."""

    def __init__(self, rows: Rows) -> None:
        super().__init__(torch.arange(rows.training), rows.labels[: rows.training].cpu())
        self._give_way = rows.give_way

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Returns a row, before which others may run: no pass is under way."""
        self._give_way()
        return tuple(tensor[index] for tensor in self.tensors)


class _Part(Tensor):
    """A part of a vector of parameters, in the place of one of them; a module may assign it to where it is, as
    ``self.scale *= 0.9`` does: PyTorch takes only a parameter there, and only a leaf of the graph."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as PyTorch's Parameter
    _is_param = True
    grad_fn = None


class _Numbered(nn.Module):
    """A module that runs the model on rows by their numbers, with the parameters that are differentiated."""

    def __init__(self, rows: Rows, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._run, self._chosen = rows.run, {f"module.{name}": each for name, each in rows.parameters.items()}

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """Yields the chosen ones."""
        return iter(self._chosen.values())

    def named_parameters(self, *given: Any, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the chosen ones; with duplicates all, by each of their names."""
        return iter(self._chosen.items()) if remove_duplicate else super().named_parameters(remove_duplicate=False)

    def forward(self, numbers: Tensor) -> Tensor:
        """Returns the output of the model.

        For a Hessian, parts of one long vector are in the place of parameters. A module that changes its parameters as
        it runs, such as ``nn.Embedding(max_norm=...)``, would change that vector, and cut it off from its derivatives:
        PyTorch's Hessian is then 0 everywhere. So the model gets copies.
        """
        parts: Iterator[tuple[str, Any]] = super().named_parameters()
        copies: dict[str, Tensor] = {
            name: part.clone().as_subclass(_Part) for name, part in parts if not isinstance(part, nn.Parameter)
        }
        output: Tensor = torch.func.functional_call(self, copies, (numbers,)) if copies else self._run(numbers)
        return output


def _similar(metric: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Rows, Influence], Scores]:
    """Returns a function that compares what a module returns by Captum's ``metric``."""

    def of_only_layer(test: Any, train: Tensor) -> Tensor:
        given = test[0] if isinstance(test, (list, tuple)) else test
        return metric(given.flatten(1).double(), train.flatten(1).double())  # half has no distance

    def scores(rows: Rows, _: Influence) -> Scores:
        count = rows.training
        size = next(size for size in range(MOST_ROWS, 0, -1) if count % size == 0)  # Captum needs whole batches
        with TemporaryDirectory(prefix="cutaway-influence-") as folder:
            captum = SimilarityInfluence(
                _Numbered(rows, layer=rows.layer), ["layer"], range(count), folder, "m", of_only_layer, "max", size
            )
            order, values = captum.influence(rows.asked, top_k=count)["layer"]
        return torch.zeros(values.shape, dtype=torch.float64).scatter_(1, order, values.double()), None

    return scores


def _tracin(rows: Rows, _: Influence) -> Scores:
    captum = TracInCP(_Numbered(rows), rows.data, loss_fn=nn.CrossEntropyLoss(reduction="none"), **rows.tracing)
    return captum.influence(rows.labelled), captum.self_influence()


def _tracin_fast(rows: Rows, _: Influence) -> Scores:
    summed = nn.CrossEntropyLoss(reduction="sum")
    captum = TracInCPFast(_Numbered(rows, layer=rows.layer), rows.layer, rows.data, loss_fn=summed, **rows.tracing)
    return captum.influence(rows.labelled), captum.self_influence()


class _NoIndex(NearestNeighbors):  # type: ignore[misc]  # Captum has no types
    """No index of neighbours: every score is computed."""

    def setup(self, data: Tensor) -> None:
        """Keeps nothing."""

    def get_nearest_neighbors(self, query: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Is never called."""
        raise NotImplementedError


def _tracin_projected(rows: Rows, asked: Influence) -> Scores:
    summed = nn.CrossEntropyLoss(reduction="sum")
    options = {"projection_dim": asked.dimension, "seed": asked.seed, "nearest_neighbors": _NoIndex()}
    model = _Numbered(rows, layer=rows.layer)
    captum = TracInCPFastRandProj(model, rows.layer, rows.data, loss_fn=summed, **options, **rows.tracing)
    return captum.influence(rows.labelled, k=None), None  # Captum has no self-influence of projections


def _symmetric_eigenvalues(hessian: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the eigenvalues of a symmetric matrix, the smallest first, with orthogonal eigenvectors.

    Captum takes a Hessian for an unsymmetric matrix. In float32 its eigenvectors of nearly equal eigenvalues are then
    not orthogonal, and scores are wrong by as much as their size.
    """
    values, vectors = torch.linalg.eigh(((hessian + hessian.T) / 2).double())
    return values.to(hessian.dtype), vectors.to(hessian.dtype)


def _replaced(module: ModuleType, name: str, function: Callable[..., Any]) -> ProcessSetting[Any]:
    return ProcessSetting(lambda: getattr(module, name), partial(setattr, module, name), function)


_SYMMETRIC = _replaced(common, "_eig_helper", _symmetric_eigenvalues)


_PLAIN_ARNOLDI = arnoldi_influence_function._parameter_arnoldi


def _arnoldi_in_double(product: Callable[[Any], Any], first: Any, *options: Any) -> tuple[list[Any], Tensor]:
    """Runs Captum's iteration with its vectors in float64; the products stay those of the model's type.

    In float32 the vectors lose their right angles where a layer has few parameters, and scores are wrong by as much as
    their size.
    """
    dtype = first[0].dtype

    def cast(vector: Any, to: torch.dtype) -> Any:
        return tuple(part.to(to) for part in vector)

    def wide(vector: Any) -> Any:
        return cast(product(cast(vector, dtype)), torch.float64)

    basis, hessian = _PLAIN_ARNOLDI(wide, cast(first, torch.float64), *options)
    return [cast(vector, dtype) for vector in basis], hessian.to(dtype)


_IN_DOUBLE = _replaced(arnoldi_influence_function, "_parameter_arnoldi", _arnoldi_in_double)


def _by_hessian(kind: Callable[..., Any], *options: str) -> Callable[[Rows, Influence], Scores]:
    """Returns a function that runs Captum's influence function ``kind`` with the named ``options`` of its own."""

    def scores(rows: Rows, asked: Influence) -> Scores:
        own = {"arnoldi_dim": asked.iterations, "arnoldi_tol": rows.least}
        with _SYMMETRIC.applied(), _IN_DOUBLE.applied():
            captum = kind(
                _Numbered(rows, module=rows.module),
                rows.data,
                0,
                lambda _, number: rows.load(number),
                loss_fn=nn.CrossEntropyLoss(reduction="none"),
                batch_size=MOST_ROWS,
                hessian_dataset=torch.utils.data.DataLoader(rows.data, rows.batch),
                projection_dim=asked.dimension,
                seed=asked.seed,
                hessian_reg=asked.damping,
                hessian_inverse_tol=LEAST_EIGENVALUE,
                **{name: own[name] for name in options},
            )
        return captum.influence(rows.labelled), captum.self_influence()

    return scores


class Method(NamedTuple):
    """How Captum finds training rows.

    Attributes:
        scores: runs Captum.
        fault: what is said of scores that are wrong.
        is_similarity: whether it compares what a module returns, and no losses.
        is_of_last_layer: whether it differentiates only the weights of the layer that returns the logits.
        has_hessian: whether it multiplies through the inverse of a Hessian.
        has_checkpoints: whether it sums over checkpoints of the training.
        has_own: whether it says how much each training row helps itself.
    """

    scores: Callable[[Rows, Influence], Scores]
    fault: str = "Captum's scores are not the products of raw gradients"
    is_similarity: bool = False
    is_of_last_layer: bool = False
    has_hessian: bool = False
    has_checkpoints: bool = False
    has_own: bool = True

    @property
    def needs_layer(self) -> bool:
        """Whether a caller names a module."""
        return self.is_similarity or self.is_of_last_layer


_OF_HESSIAN = "Captum's scores are not the products of raw gradients through the damped Hessian of the losses"
_OF_OUTPUTS = "Captum's similarities are not those of what raw hooks saw"

METHODS = {
    InfluenceMethod.TRACIN: Method(_tracin, has_checkpoints=True),
    InfluenceMethod.TRACIN_FAST: Method(_tracin_fast, is_of_last_layer=True, has_checkpoints=True),
    InfluenceMethod.TRACIN_PROJECTED: Method(
        _tracin_projected, is_of_last_layer=True, has_checkpoints=True, has_own=False
    ),
    InfluenceMethod.INFLUENCE_FUNCTION: Method(_by_hessian(NaiveInfluenceFunction), _OF_HESSIAN, has_hessian=True),
    InfluenceMethod.ARNOLDI: Method(
        _by_hessian(arnoldi_influence_function.ArnoldiInfluenceFunction, "arnoldi_dim", "arnoldi_tol"),
        _OF_HESSIAN,
        has_hessian=True,
    ),
    InfluenceMethod.COSINE: Method(_similar(cosine_similarity), _OF_OUTPUTS, is_similarity=True, has_own=False),
    InfluenceMethod.EUCLIDEAN: Method(_similar(euclidean_distance), _OF_OUTPUTS, is_similarity=True, has_own=False),
}
"""Every method of influence."""


def method_of(asked: Influence) -> Method:
    """Returns the row of the method that a request asks for."""
    return METHODS[InfluenceMethod(asked.method)]
