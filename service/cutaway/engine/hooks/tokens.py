"""Names parts of the tensors of language models: tokens of each row, and heads of attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cutaway.contract.errors import Reason, at, error
from cutaway.contract.requests import Capture, Edit, Point, Position, Slice
from cutaway.engine.model.module_tree import ModuleTree

Ranges: TypeAlias = Sequence[tuple[int, int]]
"""For each row, the number of its first token that is no padding, and one past the last."""


class TwoTexts(NamedTuple):
    """The tokens of each row that are no padding, in a model that reads one text and writes another.

    Attributes:
        encoder: the name of the module that reads.
        read: those of the text that is read.
        written: those of the text that is written.
        sizes: the numbers of tokens of both, with padding.
    """

    encoder: str
    read: Ranges
    written: Ranges
    sizes: tuple[int, int]

    def is_inside(self, name: str) -> bool:
        """Returns whether a module or operator is inside of the encoder."""
        return name.startswith((f"{self.encoder}.", f"{self.encoder}:")) or name == self.encoder

    def of(self, size: int) -> Ranges:
        """Returns those of the text of which an axis of ``size`` has the tokens.

        Raises:
            InvalidArgument: ``AXIS_RANGE``: it is none, or may be either.
        """
        read, written = self.sizes
        if size not in self.sizes:
            what = f"axis 1 has size {size}: neither the {read} tokens that are read nor the {written} that are written"
            raise error(Reason.AXIS_RANGE, what)
        if read == written and self.read != self.written:
            what = f"axis 1 may have the {read} tokens that are read, or as many that are written"
            raise error(Reason.AXIS_RANGE, f"{what}: send rows of one length, or pad them by one more token")
        return self.read if size == read else self.written


class RowTexts(NamedTuple):
    """The tokens of each row that are its own text.

    Attributes:
        ranges: those that are no padding; None where all tokens are the row's.
        named: by text, its token in each row, counted from the row's first; of a text that is read, where another is
            written.
        size: the number of tokens, with padding; None where it is not known, and of two texts.
    """

    ranges: Ranges | TwoTexts | None = None
    named: Mapping[str, Sequence[int]] = MappingProxyType({})
    size: int | None = None

    def of(self, size: int) -> Ranges | None:
        """Returns the tokens of each row along an axis of ``size``; None where all are the row's; raises as
        `TwoTexts.of`."""
        return self.ranges.of(size) if isinstance(self.ranges, TwoTexts) else self.ranges

    def inside(self, name: str) -> RowTexts:
        """Returns those of the text that a module or operator reads, if it is inside of an encoder."""
        if not isinstance(self.ranges, TwoTexts) or not self.ranges.is_inside(name):
            return self
        return self._replace(ranges=self.ranges.read, size=self.ranges.sizes[0])

    @property
    def written(self) -> RowTexts:
        """Returns those of the text that is written, where an encoder reads another one."""
        return self._replace(ranges=self.ranges.written) if isinstance(self.ranges, TwoTexts) else self


ONE_TOKEN = RowTexts(size=1)
"""The tokens of later steps of a generation."""

MASK = "attention_mask"
"""The input of transformers' models that is 0 where a text is padded."""

TEXT = frozenset({"input_ids", MASK})
"""The inputs of transformers' models that are a text; others are beside it, such as a picture."""


def text_ranges(mask: Tensor) -> Ranges:
    """Returns the tokens of each row for which a mask [batch, tokens] is not 0, from the first to the last."""
    found = []
    for row in mask.to("cpu"):
        places = row.nonzero()
        found.append((int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0))
    return found


def of_token(
    tensor: Tensor, position: Position | tuple[Position, ...], row_axis: int | None, texts: RowTexts | None
) -> Tensor:
    """Returns token ``position`` of each row of ``tensor`` [batch, tokens, ...]; of several along axis 1. Arguments and
    errors are those of `token_index`."""
    is_unpadded = (texts is None or texts.ranges is None) and has_tokens(position, tensor.shape, row_axis, texts)
    if is_unpadded and isinstance(position, int) and -tensor.shape[1] <= position < tensor.shape[1]:
        return tensor.select(1, position)  # each step of a generation comes here: an index takes ten times as long
    return tensor[token_index(position, tensor.shape, row_axis, texts)]


def of_query(
    weights: Tensor, position: Position | tuple[Position, ...], row_axis: int | None, texts: RowTexts | None
) -> Tensor:
    """Returns what `of_token` does of ``weights`` of attention [batch, heads, queries, keys], for a query; several stay
    on their axis."""
    by_query = weights.movedim(-2, 1)
    taken: Tensor = of_token(by_query.flatten(2), position, row_axis, texts).unflatten(-1, by_query.shape[2:])
    return taken.movedim(1, -2) if isinstance(position, tuple) else taken


def of_heads(weights: Tensor, heads: Sequence[int]) -> Tensor:
    """Returns ``heads`` of weights of attention [batch, heads, queries, keys].

    Raises:
        InvalidArgument: ``AXIS_RANGE`` or ``SLICE_RANGE``.
    """
    if weights.ndim != 4:
        raise error(Reason.AXIS_RANGE, f"the weights have the shape {list(weights.shape)}, without an axis of heads")
    for number, head in enumerate(heads):
        if not 0 <= head < weights.shape[1]:
            raise error(Reason.SLICE_RANGE, f"{head}; there are heads 0 to {weights.shape[1] - 1}", f"[{number}]")
    return weights[:, list(heads)]


def position_field(position: Position | tuple[Position, ...] | None) -> str:
    """Returns the contract's field for a position."""
    return "positions" if isinstance(position, tuple) else "position_text" if isinstance(position, str) else "position"


def has_tokens(
    position: Position | tuple[Position, ...], shape: torch.Size, row_axis: int | None, texts: RowTexts | None
) -> bool:
    """Returns whether axis 1 of a tensor of ``shape`` has tokens of each row, as far as sizes tell; arguments are those
    of `token_index`. Logits may be those of the last token alone, which is ``position`` -1."""
    if row_axis != 0 or len(shape) < 2:
        return False
    known = RowTexts() if texts is None else texts
    sizes = known.ranges.sizes if isinstance(known.ranges, TwoTexts) else (known.size or shape[1],)
    are_weights = len(shape) == 4 and 1 < shape[1] == shape[2] == shape[3]  # of as many heads as tokens
    several = position if isinstance(position, tuple) else (position,)
    is_last = shape[1] == 1 and {*several} == {-1} and len(shape) < 4
    return is_last or (shape[1] in sizes and not (are_weights and known.size))


def token_index(
    position: Position | tuple[Position, ...],
    shape: torch.Size,
    row_axis: int | None,
    texts: RowTexts | None,
    of_rows: Sequence[int] = (),
    field: str = "position",
) -> tuple[Tensor, Tensor]:
    """Returns the index of token ``position`` of each row, in a tensor of ``shape``; of several along axis 1.

    Args:
        position: from the first token of the row's own text; a negative one from its last; or a text.
        shape: [batch, tokens, ...].
        row_axis: the axis that has the rows; only 0 is possible.
        texts: the rows' own texts; None where all tokens are, and none is named.
        of_rows: the rows; empty for all.
        field: the request field of the position.

    Raises:
        InvalidArgument: ``AXIS_RANGE`` or ``SLICE_RANGE``.
    """
    several, own, columns = position if isinstance(position, tuple) else (position,), of_rows or range(shape[0]), []
    for number, one in enumerate(several):
        with at(f"{field}s.tokens[{number}].position" if several is position else field):
            if row_axis != 0 or len(shape) < 2:
                raise error(Reason.AXIS_RANGE, f"the shape {list(shape)} has no rows on axis 0 with tokens on axis 1")
            if texts and texts.size and shape[1:2] != (1,) and not has_tokens(one, shape, row_axis, texts):
                what = f"the shape {list(shape)} has something else on axis 1 than the {texts.size} tokens"
                raise error(Reason.AXIS_RANGE, f"{what}: of a module with several tensors, name the one: path='[0]'")
            columns.append(torch.tensor(_token_places(one, shape, texts or RowTexts(), own), device="cpu"))
    rows = torch.tensor(own, device="cpu")
    return (rows.unsqueeze(1), torch.stack(columns, dim=1)) if several is position else (rows, columns[0])


def _token_places(position: Position, shape: torch.Size, texts: RowTexts, own: Sequence[int]) -> list[int]:
    size = shape[1]
    is_last = size == 1 and position == -1  # logits of the last token alone
    if isinstance(position, str) and isinstance(texts.ranges, TwoTexts):
        what = (
            f"{position!r:.80} is a token that is read: name a module inside of {texts.ranges.encoder!r}, or a number"
        )
        raise error(Reason.AXIS_RANGE, what)
    ranges = (None if is_last else texts.of(size)) or [(0, size)] * shape[0]
    places = []
    for row in own:
        start, stop = ranges[row]
        number = texts.named[position][row] if isinstance(position, str) else position
        place = (stop if number < 0 else start) + number
        places.append(place)
        if not start <= place < stop <= size:
            what = f"row {row} has {stop - start} tokens, and axis 1 has size {size}: there is no token {position!r}"
            hint = "; of a generation, steps=(0,) has the tokens of the prompt, a later step one of each row"
            raise error(Reason.SLICE_RANGE, what + hint * (size == 1))
    return places


_JOINING = ("c_proj", "dense", "o", "o_proj", "out_proj")
"""The modules of transformers' models that join heads: each has them side by side along the last axis of its input."""


def head_sizes(tree: ModuleTree, name: str) -> tuple[int, int]:
    """Returns how many heads of attention the input of module ``name`` has along its last axis, and the size of each.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``: it has none, or others than the model's configuration says.
    """
    config: Any = getattr(tree.modules[""], "config", None)
    count = getattr(config.get_text_config() if hasattr(config, "get_text_config") else config, _COUNT, None)
    if not isinstance(count, int):
        raise error(Reason.METHOD_INAPPLICABLE, f"this model has no heads: its configuration has no {_COUNT}")
    joining = {name: size for name in tree.modules if (size := _head_size(tree, name)) is not None}
    if name not in joining:
        there = f", such as {next(iter(joining))!r}" if joining else ", of which this model has none that is known"
        raise error(Reason.METHOD_INAPPLICABLE, f"{name!r} joins no heads: name a module of attention that does{there}")
    channels = getattr(tree.modules[name], "in_features", getattr(tree.modules[name], "nx", None))  # of GPT-2's Conv1D
    if channels != count * joining[name]:
        what = f"the input of {name!r} has {channels} channels, and not {count} heads of {joining[name]}"
        raise error(Reason.METHOD_INAPPLICABLE, what)
    return count, joining[name]


_COUNT = "num_attention_heads"


def _head_size(tree: ModuleTree, name: str) -> int | None:
    """Returns the size of the heads that module ``name`` joins, as its attention says; None if it joins none."""
    attention, _, own = name.rpartition(".")
    sizes = (getattr(tree.modules[attention], size, None) for size in ("head_dim", "head_size", "key_value_proj_dim"))
    return next((size for size in sizes if isinstance(size, int)), None) if own in _JOINING else None


def with_heads(tree: ModuleTree, name: str, part: Capture | Edit, points: Iterable[Point]) -> tuple[Slice, ...]:
    """Returns the slices of a capture or an edit of module ``name``, with that of its heads.

    Raises:
        InvalidArgument: ``METHOD_INAPPLICABLE``, as `head_sizes`, or at another point than the input; ``SLICE_RANGE``.
    """
    with at("heads"):
        if part.op or not {*points} <= {Point.INPUT, Point.GRAD_INPUT}:
            raise error(Reason.METHOD_INAPPLICABLE, "heads are those of the input of a module: say at='input'")
        count, size = head_sizes(tree, name)
        for number, head in enumerate(part.heads):
            if not 0 <= head < count:
                raise error(Reason.SLICE_RANGE, f"{head}; there are heads 0 to {count - 1}", f"[{number}]")
    channels = tuple(head * size + channel for head in part.heads for channel in range(size))
    return (*part.slices, Slice(-1, indices=channels))
