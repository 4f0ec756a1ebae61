"""Compares the results of two jobs: drift of predictions, attributions, captures, inputs and verdicts.

A column is read shard by shard. The memory needed is that of one shard of a column, of a sample of `SAMPLE_BYTES`, and
of an id and a class for each row, 8 bytes each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from cutaway.contract.errors import Reason, error
from cutaway.contract.results import Verdict
from cutaway.contract.results.arrays import ATTRIBUTION, CAPTURE, OUTPUT
from cutaway.contract.tensors import Array
from cutaway.contract.values import near_names
from cutaway.jobs.reading import Results, read

LIMITS = {"changed": 0.05, "psi": 0.2, "ndcg": 0.9, "mmd_p": 0.001, "agrees_drop": 0.01, "bad_rows_rise": 0.01}
"""The limits of measures: an alarm is a value below that of ``ndcg`` and ``mmd_p``, or above that of the others."""

BELOW = ("ndcg", "mmd_p")
"""The measures whose small values are alarms."""

BINS, SAMPLE_ROWS, SAMPLE_BYTES = 10, 5000, 2**26
"""The bins of a distribution; the most rows and bytes of the sample that their edges come from."""

MMD_ROWS, PERMUTATIONS, CHANCE = 500, 1999, 0.001
"""How often chance alone may exceed the limit of a column, if both folders have rows of one distribution."""

_Z = 3.29  # standard deviations that a normal variable exceeds in 1 of 2,000 cases


class Measure(NamedTuple):
    """One measure of the drift of one column.

    Attributes:
        column: the column.
        measure: what is measured: changed, psi, mean_psi, ndcg, mmd, mmd_p, agrees_drop or bad_rows_rise.
        value: its value.
        limit: the limit in effect, which chance would hardly pass; null for a value that raises no alarm.
        alarm: whether the value is beyond the limit.
        detail: for people: the feature that drifted most, or the values before and after.
    """

    column: str
    measure: str
    value: float
    limit: float | None
    alarm: bool
    detail: str = ""


class Drift(NamedTuple):
    """How the results of a job differ from those of another one.

    Attributes:
        before: the folder of the first job.
        after: the folder of the other job.
        before_rows: the number of its rows on disk.
        after_rows: the number of its rows on disk.
        unfinished: the folders whose job has not ended.
        same_ids: the number of rows of both whose id is the same; 0 if ids are numbers of rows of different data.
        measures: the measures of all columns.
        only_before: the columns that only the first job has.
        only_after: the columns that only the other job has.
        not_compared: the columns that both have and that cannot be compared, and why.
        alarm: whether there is any alarm.
    """

    before: Path
    after: Path
    before_rows: int
    after_rows: int
    unfinished: tuple[Path, ...]
    same_ids: int
    measures: tuple[Measure, ...]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    not_compared: dict[str, str]
    alarm: bool


# Formulas


def psi(before: Array, after: Array) -> Array:
    """Returns the population stability index of each feature, [features]: Siddiqi, Credit Risk Scorecards (2006).

    The index is the sum over bins of ``(q - p) * ln(q / p)``, where p and q are the shares of a bin before and after.
    Half a row is added to each bin that any row is in, so that empty bins give finite values.

    Args:
        before: [bins, features], the number of rows in each bin.
        after: the same, of the other data.
    """
    used = (before + after) > 0
    shares = [(counts + 0.5) / (counts + 0.5 * used).sum(axis=0, where=used) for counts in (before, after)]
    terms: Array = np.where(used, (shares[1] - shares[0]) * np.log(shares[1] / shares[0]), 0.0)
    total: Array = terms.sum(axis=0)
    return total


def psi_of_chance(before: Array, after: Array) -> Array:
    """Returns what the index of each feature exceeds with the probability `CHANCE` / features without any drift.

    Without drift, the index is about chi-square times ``1/n + 1/m``: Yurdakul, Statistical Properties of the Population
    Stability Index (2018).

    Args:
        before: [bins, features], the number of rows in each bin.
        after: the same, of the other data.
    """
    from scipy.special import chdtri

    freedom = np.maximum(((before + after) > 0).sum(axis=0) - 1, 1)
    rows = 1 / np.maximum(before.sum(axis=0), 1) + 1 / np.maximum(after.sum(axis=0), 1)
    bound: Array = chdtri(freedom, CHANCE / before.shape[1]) * rows
    return bound


def ndcg(before: Array, after: Array) -> float:
    """Returns the normalised discounted cumulative gain of the order of features after, with the gains before.

    DCG is the sum of ``gain / log2(i + 1)`` over ranks i; it is divided by that of the order before. Amazon SageMaker
    Clarify, Feature Attribution Drift for Models in Production, defines it so, and raises an alarm below 0.9. Features
    of equal importance share their ranks.

    Args:
        before: [features], the global importance of each feature: its mean magnitude.
        after: the same, of the other data or model.

    Returns:
        1 if the order is the same; 0 if one of both has no importance at all, and 1 if both have none.
    """
    from sklearn.metrics import ndcg_score

    if not before.any() or not after.any():
        return float(before.any() == after.any())
    if len(before) == 1:
        return 1.0
    return float(ndcg_score((before / before.max())[None], (after / after.max())[None]))


def mmd(before: Array, after: Array, seed: int = 0) -> tuple[float, float]:
    """Returns the squared maximum mean discrepancy, and the p-value of a permutation test.

    The kernel is Gaussian, its bandwidth the median distance of all rows. The estimate is the unbiased one, which may
    be below 0: Gretton et al., A Kernel Two-Sample Test, JMLR 13 (2012), lemma 6.

    Args:
        before: [rows, features], finite.
        after: [other rows, features], finite.
        seed: of the permutations.
    """
    count, rows = len(before), np.concatenate([before, after]).astype(np.float64)
    least, random = 1e-7 * np.abs(rows).max(), np.random.default_rng(seed)
    rows -= rows.mean(axis=0)
    spread = np.abs(rows).max()  # the median is scaled too, and squares stay finite
    rows /= spread if spread > least else np.inf  # rounding errors are the same
    squares = np.einsum("ij,ij->i", rows, rows)  # without a copy of them
    distances = np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)
    pairs = distances[np.triu_indices(len(rows), 1)]
    median = np.median(pairs) or pairs.mean() or 1.0
    kernel = np.exp(distances / (-2 * median))
    np.fill_diagonal(kernel, 0)
    groups = np.zeros((len(rows), PERMUTATIONS + 1))
    groups[:count, 0] = 1
    for each in range(1, PERMUTATIONS + 1):
        groups[random.choice(len(rows), count, replace=False), each] = 1
    values = _mmd_of_groups(kernel, groups, count)
    return float(values[0]), (1 + int((values[1:] >= values[0] - 1e-12).sum())) / (1 + PERMUTATIONS)


def _mmd_of_groups(kernel: Array, groups: Array, count: int) -> Array:
    """Returns the estimate for each column of ``groups``, which has 1 for the rows of the first sample."""
    others = len(kernel) - count
    within = (groups * (kernel @ groups)).sum(axis=0)
    touching = groups.T @ kernel.sum(axis=1)
    outside = kernel.sum() - 2 * touching + within
    between: Array = touching - within
    means: Array = within / (count * (count - 1)) + outside / (others * (others - 1)) - 2 * between / (count * others)
    return means


def bin_edges(sample: Array) -> Array:
    """Returns edges of bins for each feature, [`BINS` - 1, features]: the deciles of ``sample`` [rows, features].

    A value that several deciles have gets a bin of its own, a little wider than the value, so that rounding does not
    leave it.
    """
    edges = np.zeros((BINS - 1, sample.shape[1]))
    finite = np.where(np.isfinite(sample), sample, np.nan)
    some = ~np.isnan(finite).all(axis=0)
    edges[:, some] = np.nanquantile(finite[:, some], np.arange(1, BINS) / BINS, axis=0, method="inverted_cdf")
    width = np.maximum(1e-4 * np.abs(edges).max(axis=0), 1e-12)
    same, none = edges[1:] == edges[:-1], np.zeros((1, sample.shape[1]), bool)
    below, last = np.concatenate([same, none]), np.concatenate([none, same])
    return np.sort(edges - width * below + width * (last & ~below), axis=0)


def bin_counts(values: Array, edges: Array) -> Array:
    """Returns how many of ``values`` [rows, features] are in each bin, [`BINS` + 1, features]; the last one is NaN."""
    present = (~np.isnan(values)).sum(axis=0)
    above = [present, *((values > edge).sum(axis=0) for edge in edges), np.zeros_like(present)]
    return np.concatenate([-np.diff(above, axis=0), [len(values) - present]]).astype(np.float64)


# Two folders


def compare(before: Path | str, after: Path | str, limits: Mapping[str, float] | None = None) -> Drift:
    """Measures how the results in ``after`` differ from those in ``before``.

    Both may be of other versions of a model, or of other data. Rows with an error are left out and counted.

    Args:
        before: the folder of a job.
        after: the folder of another job.
        limits: limits in place of those in `LIMITS`; infinity for a measure that raises no alarm (0 in `BELOW`).

    Raises:
        InvalidArgument: ``DATA_UNREADABLE``: a folder holds no job, or no row. ``INVALID_VALUE``: a limit is of no
            measure. ``COLUMN_NOT_FOUND``: no column that both have can be compared, or none that a limit is about.
    """
    _check_limits(limits or {})
    pair = _Pair(read(before), read(after), {**LIMITS, **(limits or {})})
    measures = tuple(pair.measures())
    for name in limits or {}:
        if all(each.measure != name for each in measures):
            raise error(Reason.COLUMN_NOT_FOUND, f"no column that both jobs have is measured by {name}", "limit")
    one, other = pair.one, pair.other
    return Drift(
        *(one.folder.path, other.folder.path, one.rows, other.rows),
        unfinished=tuple(each.folder.path for each in (one, other) if not each.complete),
        same_ids=len(pair.places[0]),
        measures=measures,
        only_before=tuple(name for name in one if name not in other.columns),
        only_after=tuple(name for name in other if name not in one.columns),
        not_compared=pair.not_compared,
        alarm=any(each.alarm for each in measures),
    )


def _check_limits(limits: Mapping[str, float]) -> None:
    for name, value in limits.items():
        if name not in LIMITS:
            close = near_names(name, LIMITS, 1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise error(Reason.INVALID_VALUE, f"{name!r} is no limit; {hint}there are {', '.join(LIMITS)}", "limit")
        if math.isnan(value) or value < 0:
            raise error(Reason.INVALID_VALUE, f"the limit {name} is {value}, and must be 0 or more", "limit")


class _Pair:
    """Two results, and what they have in common.

    Attributes:
        one: the results before.
        other: the results after.
        places: the places of the rows with the same id, before and after.
        not_compared: the reasons for columns that were left out.
    """

    def __init__(self, one: Results, other: Results, limits: Mapping[str, float]) -> None:
        self.one, self.other, self._limits = one, other, limits
        for results in (one, other):
            if not results.rows:
                what = f"{results.folder.path} has no row yet: run the job first"
                raise error(Reason.DATA_UNREADABLE, what, "folder")
        self.places = _same_ids(one, other)
        self.not_compared: dict[str, str] = {}

    def measures(self) -> Iterator[Measure]:
        """Yields the measures of all columns that both have."""
        compared = [name for name in self.one if name in self.other.columns and self._kind(name) in _MEASURES]
        if not compared:
            raise error(Reason.COLUMN_NOT_FOUND, "the two jobs have no column in common that can be compared", "folder")
        yield _bad_rows(self)
        for name in sorted(compared, key=lambda name: list(_MEASURES).index(self._kind(name))):
            if why := self._difference(name):
                self.not_compared[name] = why
            else:
                yield from _MEASURES[self._kind(name)](self, name)

    def _kind(self, name: str) -> str:
        """Returns the kind of a column. Scores of a classifier have none here: its probabilities are compared."""
        kind = self.one.about(name)["kind"]
        return "" if kind == OUTPUT and "prediction" in self.one.columns else kind

    def _difference(self, name: str) -> str:
        """Returns why a column cannot be compared; empty if it can."""
        types = [each.schema.field(name).type for each in (self.one, self.other)]
        if self._kind(name) == "verdict":
            return ""
        if not all(pa.types.is_primitive(each) or isinstance(each, pa.FixedShapeTensorType) for each in types):
            return "it holds texts or files, or its rows differ in shape"
        shapes = [list(getattr(each, "shape", [])) for each in types]
        if shapes[0] != shapes[1]:
            return f"its rows have the shape {shapes[0]} before and {shapes[1]} after"
        names = [set(each.feature_names(name)) for each in (self.one, self.other)]
        if all(names) and names[0] != names[1]:
            return f"its features differ: {', '.join(sorted(names[0] ^ names[1])[:3])}"
        return ""

    def measure(self, column: str, measure: str, value: float, detail: str = "", chance: float = 0.0) -> Measure:
        """Returns a measure with its alarm; ``chance`` is what the value may exceed without drift."""
        limit = self._limits.get(measure)
        if limit is None:
            return Measure(column, measure, value, None, False, detail)
        limit = max(limit, chance)
        return Measure(column, measure, value, limit, value < limit if measure in BELOW else value > limit, detail)

    def before(self, name: str) -> Iterator[Array]:
        """Yields the rows of a column before, shard by shard, [rows, features]."""
        return map(_flat, _values(self.one, name))

    def after(self, name: str) -> Iterator[Array]:
        """Yields the rows of a column after, in the order that its features have before."""
        before, after = self.one.feature_names(name), self.other.feature_names(name)
        named = before and before != after and len(set(after)) == len(after) == len(before)
        order: Any = [after.index(feature) for feature in before] if named else slice(None)
        for values in _values(self.other, name):
            yield _flat(values[..., order] if named else values)

    def feature(self, name: str, place: int) -> str:
        """Returns the name of a feature, or its indices in a row."""
        shape, names = tuple(getattr(self.one.schema.field(name).type, "shape", ())), self.one.feature_names(name)
        if len(shape) == 1 and names:
            return names[place]
        return str([int(index) for index in np.unravel_index(place, shape)]) if shape else ""


def _same_ids(one: Results, other: Results) -> tuple[Array, Array]:
    """Returns the places of the rows whose id both have once. Numbers of rows are ids within the same data only."""
    manifests = one.manifest, other.manifest
    if not all(each.job.get("id") for each in manifests) and manifests[0].fingerprint != manifests[1].fingerprint:
        return np.zeros(0, int), np.zeros(0, int)
    found = []
    for results in (one, other):
        hashes = [np.array([hash(each) for each in shard["id"]], np.int64) for shard in results.shards(["id"])]
        ids, places, counts = np.unique(np.concatenate(hashes), return_index=True, return_counts=True)
        found.append((ids[counts == 1], places[counts == 1]))
    (ids, places), (other_ids, other_places) = found
    _, before, after = np.intersect1d(ids, other_ids, assume_unique=True, return_indices=True)
    order = np.argsort(places[before])  # hashes of texts differ from process to process
    return places[before][order], other_places[after][order]


def _values(results: Results, name: str) -> Iterator[Array]:
    """Yields the values of a column, shard by shard, without those of bad rows."""
    for shard in results.shards(["error", name]):
        yield shard[name][[failure is None for failure in shard["error"]]]


def _flat(values: Array) -> Array:
    return np.asarray(values).reshape(len(values), math.prod(values.shape[1:]))


def _sample(shards: Iterator[Array], rows: int) -> Array:
    """Returns random rows; the same places whenever ``rows`` is the same, so that equal folders have equal samples."""
    parts: list[Array] = []
    start, chosen = 0, np.zeros(rows, bool)
    for shard in shards:
        if not parts:
            most = min(SAMPLE_ROWS, max(50, SAMPLE_BYTES // max(1, shard[:1].nbytes)))
            chosen[np.random.default_rng(0).permutation(rows)[:most]] = True
        parts.append(shard[chosen[start : start + len(shard)]])
        start += len(shard)
    return np.concatenate(parts)


# The measures of a kind of columns


def _bad_rows(pair: _Pair) -> Measure:
    counts = _counts(pair, "error", lambda failure: failure is not None)
    return _change_of_share(pair, "error", "bad_rows_rise", counts, True)


def _verdicts(pair: _Pair, name: str) -> Iterator[Measure]:
    counts = _counts(pair, name, lambda verdict: verdict)
    for each in counts:
        del each[None]  # rows that were not explained
    yield _change_of_share(pair, name, "agrees_drop", counts, Verdict.AGREES.value)


def _counts(pair: _Pair, name: str, key: Callable[[Any], Any]) -> list[Counter[Any]]:
    both = pair.one, pair.other
    return [Counter(key(cell) for shard in each.shards([name]) for cell in shard[name]) for each in both]


def _change_of_share(pair: _Pair, column: str, measure: str, counts: Sequence[Counter[Any]], what: Any) -> Measure:
    """Returns by how much the share of ``what`` has become larger, or for a drop smaller."""
    sizes = [max(each.total(), 1) for each in counts]
    before, after = (each[what] / size for each, size in zip(counts, sizes))
    pooled = sum(each[what] for each in counts) / sum(sizes)
    same_rows = len(pair.places[0]) == pair.one.rows == pair.other.rows  # none of the change is due to chance
    chance = 0.0 if same_rows else _Z * math.sqrt(pooled * (1 - pooled) * (1 / sizes[0] + 1 / sizes[1]))
    value = before - after if measure == "agrees_drop" else after - before
    return pair.measure(column, measure, value, f"{before:.1%} -> {after:.1%}", chance)


def _predictions(pair: _Pair, name: str) -> Iterator[Measure]:
    """Yields the share of the same rows whose class has changed, and the drift of the distribution of classes."""
    numbers: dict[str, int] = {}
    classes = [_classes(results, name, numbers) for results in (pair.one, pair.other)]
    before, after = (each[places] for each, places in zip(classes, pair.places))
    both, changed = (before >= 0) & (after >= 0), (before >= 0) & (after >= 0) & (before != after)
    if both.any():
        names = list(numbers)
        most = Counter(zip(before[changed].tolist(), after[changed].tolist())).most_common(1)
        shown = "".join(f", most {names[one]} -> {names[other]} ({count:,})" for (one, other), count in most)
        detail = f"{changed.sum():,} of {both.sum():,} rows{shown}"
        yield pair.measure(name, "changed", float(changed.sum() / both.sum()), detail)
    counts = [np.bincount(each[each >= 0], minlength=len(numbers))[:, None] for each in classes]
    yield from _psi(pair, name, counts[0], counts[1])


def _classes(results: Results, name: str, numbers: dict[str, int]) -> Array:
    """Returns the number of each row's class, -1 in a bad row; adds the names of new classes to ``numbers``."""
    found, places = np.unique(np.ma.filled(results[name], -1).astype(np.int64), return_inverse=True)
    names = [None if index < 0 else results.manifest.class_name(index) for index in found.tolist()]
    table = [-1 if each is None else numbers.setdefault(each, len(numbers)) for each in names]
    classes: Array = np.array(table, np.int64)[places]
    return classes


def _distributions(pair: _Pair, name: str) -> Iterator[Measure]:
    """Yields the drift of the distribution of each feature: the largest one, and the mean of all."""
    edges = bin_edges(_sample(pair.before(name), pair.one.rows))
    yield from _psi(pair, name, *(_counted(shards, edges) for shards in (pair.before(name), pair.after(name))))


def _counted(shards: Iterator[Array], edges: Array) -> Array:
    counts: Array = sum((bin_counts(shard, edges) for shard in shards), np.zeros((BINS + 1, edges.shape[1])))
    return counts


def _psi(pair: _Pair, name: str, before: Array, after: Array) -> Iterator[Measure]:
    if not (before.any() and after.any()):
        pair.not_compared[name] = "no row has a value before, or after"
        return
    values, chance = psi(before, after), psi_of_chance(before, after)
    place = int(np.argmax(values / np.maximum(chance, LIMITS["psi"])))
    feature = pair.feature(name, place) if len(values) > 1 else ""
    yield pair.measure(name, "psi", float(values[place]), feature, float(chance[place]))
    if len(values) > 1:
        yield pair.measure(name, "mean_psi", float(values.mean()))


def _captures(pair: _Pair, name: str) -> Iterator[Measure]:
    """Yields the drift of each feature, and that of all together."""
    yield from _distributions(pair, name)
    samples = []
    for shards, results in ((pair.before(name), pair.one), (pair.after(name), pair.other)):
        sample = _sample(shards, results.rows)
        sample = sample[np.isfinite(sample).all(axis=1)]
        samples.append(sample[np.random.default_rng(1).permutation(len(sample))[:MMD_ROWS]])
    if min(map(len, samples)) > 1:
        value, p_value = mmd(samples[0], samples[1])
        yield pair.measure(name, "mmd", value)
        yield pair.measure(name, "mmd_p", p_value)


def _importance(pair: _Pair, name: str) -> Iterator[Measure]:
    """Yields how well the order of features after fits their importance before."""
    before, after = (_mean_magnitude(shards) for shards in (pair.before(name), pair.after(name)))
    tops = [pair.feature(name, int(np.argmax(each))) for each in (before, after)]
    yield pair.measure(name, "ndcg", ndcg(before, after), f"first {tops[0]} -> {tops[1]}")


def _mean_magnitude(shards: Iterator[Array]) -> Array:
    """Returns the global importance of each feature: its mean magnitude in the rows where it is finite."""
    total, count = 0.0, 0.0
    for shard in shards:
        finite = np.isfinite(shard)
        total = total + np.abs(shard).sum(axis=0, dtype=np.float64, where=finite)
        count = count + finite.sum(axis=0)
    mean: Array = total / np.maximum(count, 1)
    return mean


_MEASURES: dict[str, Callable[[_Pair, str], Iterator[Measure]]] = {
    "prediction": _predictions,
    "probability": _distributions,
    OUTPUT: _distributions,
    "residual": _distributions,
    ATTRIBUTION: _importance,
    CAPTURE: _captures,
    "input": _distributions,
    "verdict": _verdicts,
}
"""The measures of each kind of columns, in the order of the table."""
