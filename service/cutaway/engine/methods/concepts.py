"""Captum's TCAV on passes of ours, with nothing left on the disk, and the classifiers that it trains.

Captum keeps activations and vectors in files; here they lie in a folder that ends with the call. It looks for saved
activations under another name than it saves them, and would compute those of a random set again for each concept. Its
classifier splits by Python's generator of the process, and its accuracy of two concepts compares with a constant class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from captum._utils.av import AV
from captum.attr import LayerGradientXActivation
from captum.concept import TCAV, Concept
from jaxtyping import Bool, Float64
from torch import Tensor, nn

from cutaway.contract.requests import ConceptClassifier
from cutaway.contract.tensors import Array
from cutaway.engine.runtime.rng import numpy_seed


class Plane(NamedTuple):
    """A separating hyperplane: ``features @ normal + offset`` is positive for the first of two sets."""

    normal: Float64[Tensor, "features"]
    offset: float


def held_out(label: int, count: int, seed: int) -> Bool[Tensor, "examples"]:
    """Returns which third of the ``count`` examples of set number ``label`` no classifier is trained on."""
    generator = torch.Generator().manual_seed((seed + label) % 2**63)
    return torch.randperm(count, generator=generator) < max(1, count // 3)


class _Units(NamedTuple):
    """The mean of examples, and the root of their mean squared distance from it: activations have units of their own.

    A fit of features less their mean has the same normal vector, and needs fewer steps.
    """

    mean: Float64[Tensor, "features"]
    scale: float

    @classmethod
    def of(cls, features: Float64[Tensor, "examples features"]) -> _Units:
        """Returns those of ``features``."""
        mean = features.mean(dim=0)
        return cls(mean, float((features - mean).square().sum(dim=1).mean().sqrt()))

    def plane(self, normal: Float64[Tensor, "features"], offset: float) -> Plane:
        """Returns the hyperplane that has a normal vector and an offset in these units."""
        normal = normal / self.scale
        return Plane(normal, offset - float(normal @ self.mean))


def fitted(
    kind: ConceptClassifier,
    features: Float64[Tensor, "examples features"],
    is_first: Bool[Tensor, "examples"],
    seed: int,
) -> Plane:
    """Returns the hyperplane that scikit-learn fits; zeros where all examples are the same."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier  # here, because it takes two seconds

    units = _Units.of(features)
    if not units.scale:
        return Plane(torch.zeros_like(units.mean), 0.0)
    if kind is ConceptClassifier.SGD:
        units = _Units(torch.zeros_like(units.mean), 1.0)  # activations as they are
        model = SGDClassifier(alpha=0.01, max_iter=1000, tol=1e-3, random_state=numpy_seed(seed))
    else:
        model = LogisticRegression(tol=1e-8, max_iter=10_000)
    fit: Any = model.fit(((features - units.mean) / units.scale).numpy(), is_first.numpy())
    normal: Array = np.asarray(fit.coef_[0], np.float64)
    return units.plane(torch.from_numpy(normal), float(fit.intercept_[0]))


def accuracy(plane: Plane, features: Float64[Tensor, "examples features"], is_first: Bool[Tensor, "examples"]) -> float:
    """Returns the share of examples on their side of ``plane``, the mean of both sets: 0.5 is chance."""
    right = ((features @ plane.normal + plane.offset > 0) == is_first).double()
    return float(right[is_first].mean() + right[~is_first].mean()) / 2


class _Linear:
    """A `captum.concept.Classifier` whose held-out examples and random numbers follow from a seed.

    Args:
        kind: which one.
        seed: of the split, and of what the fit draws.
        give_way: called before each fit.
    """

    def __init__(self, kind: ConceptClassifier, seed: int, give_way: Callable[[], object]) -> None:
        self._kind, self._seed, self._give_way = kind, seed, give_way
        self._plane, self._labels = Plane(torch.empty(0), 0.0), [0, 0]

    def train_and_eval(self, dataloader: Any, **_: Any) -> dict[str, Tensor]:
        """Fits the classifier to two sets, and returns its accuracy on examples that it has not seen."""
        self._give_way()
        features, labels = (torch.cat(parts) for parts in zip(*dataloader))
        features, self._labels = features.double().cpu(), labels.unique().tolist()
        labels = labels.cpu()
        unseen = torch.zeros(len(labels), dtype=torch.bool)
        for label in self._labels:
            unseen[labels == label] = held_out(label, int((labels == label).sum()), self._seed)
        first = labels == self._labels[0]
        self._plane = fitted(self._kind, features[~unseen], first[~unseen], self._seed)
        return {"accs": torch.tensor(accuracy(self._plane, features[unseen], first[unseen]))}

    def weights(self) -> Float64[Tensor, "2 features"]:
        """Returns the normal vectors, towards the first set and towards the second."""
        return torch.stack([self._plane.normal, -self._plane.normal])

    def classes(self) -> list[int]:
        """Returns the numbers of both sets."""
        return self._labels


class _Tcav(TCAV):  # type: ignore[misc]  # Captum has no types
    def generate_activation(self, layers: str | list[str], concept: Concept) -> None:
        """Computes the activations of a set once."""
        names = [layers] if isinstance(layers, str) else layers
        saved = self.save_path, self.model_id, concept.identifier
        if missing := [name for name in names if not AV.exists(*saved, name)]:
            super().generate_activation(missing, concept)


class _Hooked(nn.Module):
    """A module with the layers below names that are names of files too; ``forward`` runs the model.

    Captum's functions of layers register hooks on these modules, which are the model's own.
    """

    def __init__(self, layers: Sequence[nn.Module], forward: Callable[..., Tensor]) -> None:
        super().__init__()
        self._function = forward
        for number, layer in enumerate(layers):
            self.add_module(_name(number), layer)

    def forward(self, *tensors: Tensor) -> Tensor:
        """Returns the result of the function."""
        return self._function(*tensors)


def _name(layer: int) -> str:
    return f"layer{layer}"


class Versus(NamedTuple):
    """Captum's outcome for two sets at one layer, for the first and for the second.

    Attributes:
        normal: the concept activation vector of the first; that of the second is its opposite.
        shares: the sign counts.
        magnitudes: the mean directional derivatives.
        accuracy: of the classifier, on held-out examples.
    """

    normal: Float64[Tensor, "features"]
    shares: tuple[float, float]
    magnitudes: tuple[float, float]
    accuracy: float


class CaptumTcav(NamedTuple):
    """The arguments of Captum's TCAV.

    Attributes:
        layers: the modules.
        sets: by number, the batches of each set of examples.
        inputs: the rows, whose target is differentiated.
        run: runs the model, and returns any tensor.
        scalars: runs the model, and returns the target of each row.
        classifier: the kind of classifier.
        seed: of its split.
        give_way: called before each fit.
    """

    layers: Sequence[nn.Module]
    sets: Sequence[Sequence[tuple[Tensor, ...]]]
    inputs: tuple[Tensor, ...]
    run: Callable[..., Tensor]
    scalars: Callable[..., Tensor]
    classifier: ConceptClassifier
    seed: int
    give_way: Callable[[], object]

    def found(
        self, pairs: Sequence[tuple[int, int]], pairs_at_once: int
    ) -> Iterator[Mapping[tuple[int, int], Sequence[Versus]]]:
        """Yields what Captum finds of ``pairs`` of sets, by pair, for each layer; ``pairs_at_once`` bounds the memory,
        because Captum makes lists of Python numbers of all vectors."""
        concepts = [Concept(number, "set", batches) for number, batches in enumerate(self.sets)]
        gradient = LayerGradientXActivation(_Hooked((), self.scalars), None, multiply_by_inputs=False)
        names = [*map(_name, range(len(self.layers)))]
        with TemporaryDirectory(prefix="cutaway-concepts-") as folder:
            classifier = _Linear(self.classifier, self.seed, self.give_way)
            tcav = _Tcav(
                _Hooked(self.layers, self.run),
                names,
                classifier=classifier,
                layer_attr_method=gradient,
                save_path=folder,
            )
            for start in range(0, len(pairs), pairs_at_once):
                chunk = pairs[start : start + pairs_at_once]
                rows = tuple(tensor.detach().clone() for tensor in self.inputs)
                scores = tcav.interpret(rows, [[concepts[first], concepts[second]] for first, second in chunk])
                yield {
                    pair: [_versus(scores[key][name], tcav.cavs[key][name].stats) for name in names]
                    for pair, key in ((pair, f"{pair[0]}-{pair[1]}") for pair in chunk)
                }
                tcav.cavs.clear()


def _versus(scores: Mapping[str, Tensor], stats: Any) -> Versus:
    shares, magnitudes = (tuple(scores[name].double().tolist()) for name in ("sign_count", "magnitude"))
    return Versus(stats["weights"][0].double().cpu(), shares, magnitudes, float(stats["accs"]))


# A fit of our own, and the tests of significance.


def logistic_fit(features: Float64[Tensor, "examples features"], is_first: Bool[Tensor, "examples"]) -> Plane:
    """Returns the hyperplane of logistic regression with a penalty of half the squared length of its normal vector.

    The features are in units of their mean distance from their mean. Newton's method in the space of the examples: the
    normal vector is a sum of examples (Zhu and Hastie 2005, doi:10.1198/106186005X25619).
    """
    units = _Units.of(features)
    if not units.scale:
        return Plane(torch.zeros_like(units.mean), 0.0)
    scaled, labels = (features - units.mean) / units.scale, is_first.double()
    products, count = scaled @ scaled.T, len(features)
    system = torch.ones(count + 1, count + 1, dtype=torch.float64)
    system[count, count] = 0
    solution = torch.zeros(count + 1, dtype=torch.float64)

    def objective(solution: Tensor) -> Tensor:
        values = products @ solution[:count] + solution[count]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(values, labels, reduction="sum")
        return loss + solution[:count] @ products @ solution[:count] / 2

    for _ in range(_MOST_NEWTON_STEPS):
        values = products @ solution[:count] + solution[count]
        chance = values.sigmoid()
        weights = (chance * (1 - chance)).clamp_min(1e-12)
        system[:count, :count] = products + torch.diag(1 / weights)
        wanted = torch.cat([values + (labels - chance) / weights, torch.zeros(1, dtype=torch.float64)])
        step = torch.linalg.solve(system, wanted) - solution
        before, size = objective(solution), 1.0
        while size > 1e-6 and not objective(solution + size * step) <= before:
            size /= 2
        solution = solution + size * step
        if float(step.norm()) <= 1e-12 * (1 + float(solution.norm())):
            break
    return units.plane(scaled.T @ solution[:count], float(solution[count]))


_MOST_NEWTON_STEPS = 100


def t_test(shares: Sequence[float]) -> float:
    """Returns the p-value of the two-sided t-test that the mean of ``shares`` is 0.5. Kim et al. 2018, section 3.4."""
    from scipy.special import stdtr  # here, because it takes time

    count, mean = len(shares), sum(shares) / len(shares)
    variance = sum((share - mean) ** 2 for share in shares) / (count - 1)
    if variance == 0:
        return 1.0 if mean == 0.5 else 0.0
    return float(2 * stdtr(count - 1, -abs(mean - 0.5) / sqrt(variance / count)))


def p_value(share: float, of_random: Sequence[float]) -> float:
    """Returns the part of all sets, the concept among them, whose share is as far from 0.5 as that of the concept.

    If the concept is like the random sets, each of them is the farthest one with the same probability. So it is exact
    for any number of rows and any classifier. A permutation test; Phipson and Smyth 2010, doi:10.2202/1544-6115.1585.
    """
    far = abs(share - 0.5) - 1e-9
    return (1 + sum(abs(other - 0.5) >= far for other in of_random)) / (1 + len(of_random))
