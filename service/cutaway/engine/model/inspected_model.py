"""`InspectedModel`: a model that the engine can run, with its tree, its guard and its settings."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import Argument, Generate
from cutaway.contract.results import FinishReason, GeneratedStep, InputSpec
from cutaway.engine.model.failures import failures_of, unknown_id
from cutaway.engine.model.module_tree import ModuleTree, require_inspectable
from cutaway.engine.model.proofs import Proofs
from cutaway.engine.model.session import (
    NEVER_CANCELLED,
    Cancellation,
    Kept,
    PassCounter,
    ProcessSetting,
    StateGuard,
    Turns,
    released,
)
from cutaway.engine.runtime import rng
from cutaway.engine.runtime.numerics import dense, digest, has_array, leaves, one_thread

# The fast path of PyTorch's transformer layers hides modules from hooks and turns padded batches into nested tensors.
# PyTorch takes it where no gradient is computed and no hook is registered.
NO_FASTPATH = ProcessSetting(
    torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, value=False
)


T = TypeVar("T")

Inputs = dict[str, Tensor]
"""Tensors by forward-argument name, in the order in which the model declares them; axis 0 is the batch."""


TellStep: TypeAlias = Callable[[GeneratedStep, Sequence[FinishReason | None]], Iterable[int]]
"""Takes a step and why each row has ended, None for one that has not; returns the rows that shall end now."""


CONTINUATION = "continuation"
"""The input with the tokens of texts behind the prompts, int64 [batch, steps], -1 behind the end of one; and the output
with their log-probabilities, [batch, steps], 0 there."""


LOGITS = "logits"
"""The output of a model that writes texts with the logits behind each token, [batch, tokens, vocabulary]; and the
argument of forward that asks for it."""


class Texts(Protocol):
    """Rows that a model writes together, and what it keeps of them."""

    @property
    def width(self) -> int:
        """The tokens of each row, with padding in front."""

    @property
    def may_join(self) -> bool:
        """Whether rows can be taken out of what the model keeps, and others added."""

    def write(self, tell: TellStep, pauses: Callable[[], bool] = lambda: False) -> None:
        """Writes until all rows have ended, or, if they `may_join`, until ``pauses`` says so behind a step; ``tell`` is
        called after each step."""

    def take(self, other: Any) -> None:
        """Adds the rows of ``other`` behind its own; both `may_join`, and have begun."""

    def keep(self, rows: Sequence[int]) -> int:
        """Keeps only ``rows``, in this order, and returns how many columns of padding went; they `may_join`."""


class Generation(Protocol):
    """A way to write tokens behind texts, and to score them in one pass."""

    @property
    def tokenizer(self) -> Any:
        """The tokenizer, one of transformers."""

    @property
    def encoder(self) -> str:
        """The name of the module that reads the prompts, where others write; empty for a model that writes behind
        them."""

    def continued(self, inputs: Inputs, texts: Sequence[str]) -> Inputs:
        """Returns ``inputs`` with `CONTINUATION`: the tokens of ``texts``, one for each row.

        Raises:
            InvalidArgument: the texts are not padded on the left, or a text has no token, or more than there are
                positions left.
        """

    def token_texts(self, ids: Sequence[int]) -> Sequence[str]:
        """Returns the text of each token, which together are the text of ``ids``: that of a character of several tokens
        is its last one's."""

    def aligned(self, inputs: Inputs) -> Inputs:
        """Returns ``inputs`` for `begin` and `score`: with the last token of each row in the last place, those of an
        `encoder` with the first in the first place."""

    def begin(self, inputs: Inputs, chosen: Sequence[Generate], seeds: Sequence[int]) -> Texts:
        """Begins to write behind ``inputs``, which are `aligned`; ``chosen`` and ``seeds`` are those of the rows."""

    def shortfalls(
        self, inputs: Inputs, tokens: Tensor, logits: Tensor, chosen: Generate, seeds: Sequence[int]
    ) -> Tensor:
        """Returns by how much each token's logit is below that of the one that would be chosen from ``logits``, which
        `score` returned; [batch, steps], 0 where it is the one."""

    def score(self, inputs: Inputs, tokens: Tensor) -> Tensor:
        """Returns the logits of ``tokens`` [batch, steps], which are [batch, steps, vocabulary], from one pass over the
        texts with them and without a cache. A token of -1 stands for any. With an `encoder`, where as many are written
        as read, the pass writes one more: sizes tell which tokens a tensor has."""


Outputs = dict[str, Tensor]
"""Tensors that a model returned, by name: ``logits``, or the path of a nested one, ``hidden_states[0]``."""


class InspectedModel:
    """A model that can be inspected.

    Attributes:
        module: the model, on its device.
        call: runs the model on named inputs, and on the arguments of the request that are no tensors.
        inputs: its inputs in order; empty if unknown: then inputs are not validated.
        takes_any_name: whether its forward takes others too, in ``**kwargs``.
        generate: how it writes tokens behind its inputs; None if it does not.
        labels: the names of its classes; empty for a model without classes.
        special_tokens: the ids of its tokenizer's special tokens.
        ranges: by input, the least and the largest number that its adapter makes of what it decodes.
        tree: its modules by name.
        guard: protects its state.
        device: of its first parameter or buffer.
        dtype: of its first floating parameter or buffer.
        weights_sha256: a digest of its state dict.
        passes: counts its passes.
        properties: results of tests of the model, by test and kind of inputs: see `remembered`.
        proofs: which of these found nothing, also in other processes.
        recent: what recent requests have left for those that ask the same.
        kept: the data sets and the checkpoints that were packaged with the model.
        cancellation: of the call under way; safe to read from any thread.
        after_slow_forward: called with the outputs of forward passes that took long, and the seconds that they took.
        request_bytes: the memory that a request may take on a CPU; None for no limit.
        turns: tells when other requests run between two passes.
        short_elements: the most elements of inputs whose passes run in one thread, from the first request on.
    """

    def __init__(
        self,
        module: nn.Module,
        call: Callable[[dict[str, Any]], Any],
        inputs: Sequence[InputSpec] = (),
        labels: Sequence[str] = (),
        *,
        takes_any_name: bool = False,
        generate: Generation | None = None,
    ) -> None:
        require_inspectable(module)
        self.module, self.call, self.inputs, self.labels = module, call, inputs, labels
        self.takes_any_name, self.generate = takes_any_name, generate
        self.special_tokens: Collection[int] = ()
        self.ranges: Mapping[str, tuple[float, float]] = {}
        self.tree, self.guard, self.passes = ModuleTree(module), StateGuard(module), PassCounter()
        state = [*module.parameters(), *module.buffers()]
        self.device = state[0].device if state else torch.device("cpu")
        self.dtype = next((tensor.dtype for tensor in state if tensor.is_floating_point()), torch.float32)
        self.weights_sha256 = digest(module.state_dict())
        self.properties: dict[Hashable, Any] = {}
        self.proofs, self.kept = Proofs(), Kept()
        self.recent: dict[Hashable, Any] = {}
        self.turns, self.request_bytes = Turns(), cast("int | None", None)
        self._has_more_memory, self._is_divisible, self.short_elements = False, True, 0
        self._is_recurrent = any(isinstance(part, nn.RNNBase) for part in self.tree.modules.values())
        self._pass_context: Callable[[], AbstractContextManager[None]] = nullcontext
        self.cancellation = NEVER_CANCELLED
        self.after_slow_forward: Callable[[Outputs, float], None] = lambda outputs, seconds: None
        self._arguments: Mapping[str, Argument] = {}
        self._seed, self._is_beside_draws = cast("int | None", None), False

    def run(self, inputs: Inputs, call: Callable[[dict[str, Any]], Any] | None = None) -> Outputs:
        """Runs a forward pass on copies of ``inputs``, which the model may change in place.

        Args:
            inputs: the inputs.
            call: runs the model in another way than its own `call`, such as in several passes.

        Raises:
            InvalidArgument: ``MODEL_FAILED``: the model raised, with its message.
            DeadlineExceeded: the caller no longer waits.
        """
        self.cancellation.raise_if_cancelled()
        self.give_way()
        self.guard.reset()
        self.passes.forwards += 1

        def what() -> str:
            shapes = [f"{name} {dtype_text(tensor)}{list(tensor.shape)}" for name, tensor in inputs.items()]
            return f" on {', '.join(shapes + [f'{name}={value!r:.40}' for name, value in self._arguments.items()])}"

        numbers, start = self._draws(), time.perf_counter()
        with (
            failures_of(
                "the model's forward",
                what,
                why=lambda failure: unknown_id(failure, self.tree.modules, inputs, self.inputs),
            ),
            self._pass_context(),
            self._kernels(inputs),
            NO_FASTPATH.applied(),
            nullcontext() if call else self.guard.finding_writes(self.kind_of(inputs), inputs),
            nullcontext() if call else rng.passing(),
            numbers,
        ):
            returned = (call or self.call)(
                {**{name: tensor.clone() for name, tensor in inputs.items()}, **self._arguments}
            )
        outputs = {name: _array(name, output) for name, output in _named(returned).items()}
        self.passes.count_backwards(outputs)
        if self.passes.watcher is not None:
            self.passes.watcher(inputs)
        if (seconds := time.perf_counter() - start) > _SLOW_S:
            self.after_slow_forward(outputs, seconds)
        return outputs

    def give_way(self, *, in_graph: bool = False) -> None:
        """Lets other requests run before the next pass, if their turn has come.

        Args:
            in_graph: whether the next pass is a backward pass; it needs a graph, which may refer to the model's state.

        Raises:
            DeadlineExceeded: the caller no longer waits.
        """
        if self._is_divisible and rng.are_wanted():  # by another model's request
            with self.kept_rng_state(), rng.lent():
                pass
        if not (self.turns.are_over and self._is_divisible) or (in_graph and not self.guard.is_untouched()):
            return
        with self.apart():
            pass

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Lets other requests run during the block, which must neither use the model nor draw random numbers.

        They find the model as before this request: its hooks, edits, flags, settings and random numbers are put back
        when it goes on.

        Raises:
            DeadlineExceeded: the caller no longer waits.
        """
        if not (self._is_divisible and self.turns.is_divisible):
            yield
            return
        none_under_way = self._temporarily(
            passes=PassCounter(),
            cancellation=NEVER_CANCELLED,
            request_bytes=self.request_bytes,
            _has_more_memory=self._has_more_memory,
            _arguments={},
            _seed=None,
            _is_beside_draws=False,
            _pass_context=nullcontext,
        )
        with (
            self.kept_rng_state(),
            self.guard.set_aside(),
            self.tree.without_stand_ins(),
            self.proofs.set_aside(),
            none_under_way,
        ):
            rng.seed_generators(rng.new_seed(), self.device, self._generators)  # others draw no numbers of this request
            with rng.lent(), released(self.turns):
                yield
        self.cancellation.raise_if_cancelled()

    def undivided(self) -> AbstractContextManager[None]:
        """Lets no others run between the passes of the block, which keeps state elsewhere than `give_way` knows of."""
        return self._temporarily(_is_divisible=False)

    @property
    def has_more_memory(self) -> bool:
        """Whether a request that runs out of memory is run once more, with more."""
        return self._has_more_memory or self.turns.are_shared

    @has_more_memory.setter
    def has_more_memory(self, has_more: bool) -> None:
        self._has_more_memory = has_more

    def kept_rng_state(self) -> AbstractContextManager[None]:
        """Returns a context after which all generators, the model's own too, continue as before it."""
        return rng.kept_rng_state(self.device, self._generators)

    def rng_fingerprint(self) -> Hashable:
        """Returns what changes whenever the model draws random numbers."""
        return rng.fingerprint(self.device, self._generators)

    @contextmanager
    def drawing_from(self, seed: int | None, *, beside_draws: bool = False) -> Iterator[None]:
        """Seeds all generators before each forward pass of the block; they continue as before it afterwards.

        Args:
            seed: None leaves the generators as they are.
            beside_draws: whether others draw between the passes, and must not notice them.
        """
        kept = nullcontext() if seed is None or beside_draws else self.kept_rng_state()
        with kept, self._temporarily(_seed=seed, _is_beside_draws=beside_draws):
            yield

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Surrounds passes of no request: not counted, without a seed; all generators continue as before the block."""
        with self.passes.uncounted(), self.kept_rng_state(), self.drawing_from(None):
            yield

    @contextmanager
    def session(
        self, cancellation: Cancellation = NEVER_CANCELLED, arguments: Mapping[str, Argument] = MappingProxyType({})
    ) -> Iterator[None]:
        """Prepares the model for passes with gradients, whatever the caller's grad mode, and restores it afterwards,
        also after a failure. No pass begins after ``cancellation``; each gets ``arguments`` besides its inputs."""
        attributes = self._temporarily(_arguments=arguments, cancellation=cancellation)
        with torch.inference_mode(False), torch.enable_grad(), self.guard.restoring(), attributes:
            yield

    def remembered(self, key: Hashable, find: Callable[[], T]) -> T:
        """Returns the result of ``find``, which tests the model; the same ``key`` gets the same result, until there are
        too many of them."""
        if key not in self.properties:
            if len(self.properties) >= _MOST_RESULTS:
                self.properties.clear()
            self.properties[key] = find()
        return cast(T, self.properties[key])

    @property
    def has_arguments(self) -> bool:
        """Whether the request under way has arguments besides its inputs."""
        return bool(self._arguments)

    def kind_of(self, inputs: Inputs) -> Hashable:
        """Returns what inputs have in common for which the properties of the model are tested once."""
        tensors = tuple((name, tensor.dtype, tensor.ndim) for name, tensor in inputs.items())
        return tensors, arguments_kind(self._arguments)

    def layout_of(self, inputs: Inputs) -> Hashable:
        """Returns `kind_of`, and the sizes of a row to a power of two: a model may do otherwise from a length on."""
        sizes = [tuple(power_of_two(length) for length in tensor.shape[1:]) for tensor in inputs.values()]
        return self.kind_of(inputs), *sizes

    def cancelled_by(self, cancellation: Cancellation) -> AbstractContextManager[None]:
        """Begins no pass after ``cancellation`` while the block runs."""
        return self._temporarily(cancellation=cancellation)

    def with_arguments(self, arguments: Mapping[str, Argument]) -> AbstractContextManager[None]:
        """Gives every pass of the block ``arguments`` besides its inputs."""
        return self._temporarily(_arguments=arguments)

    def passes_inside(self, context: Callable[[], AbstractContextManager[object]]) -> AbstractContextManager[None]:
        """Runs every forward pass inside a new ``context()`` while the block runs, inside those of blocks around it."""
        outer = self._pass_context

        @contextmanager
        def both() -> Iterator[None]:
            with outer(), context():
                yield

        return self._temporarily(_pass_context=context if outer is nullcontext else both)

    @contextmanager
    def _temporarily(self, **attributes: Any) -> Iterator[None]:
        """Gives the model other ``attributes`` while the block runs."""
        before = {name: getattr(self, name) for name in attributes}
        for name, value in attributes.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)

    @cached_property
    def _generators(self) -> list[object]:
        return rng.own_generators(self.module)

    def _draws(self) -> AbstractContextManager[None]:
        """Seeds the generators for a forward pass; they continue as before the returned context if others use them."""
        if self._seed is None:
            return nullcontext()
        if self._is_beside_draws:
            return rng.seeded(self._seed, self.device, self._generators)
        rng.seed_generators(self._seed, self.device, self._generators)
        return nullcontext()

    def _kernels(self, inputs: Inputs) -> AbstractContextManager[None]:
        # cuDNN's RNNs refuse a backward pass in evaluation mode; PyTorch's own kernels do not. Other models run under
        # the settings of the process, which cudnn.flags() would reset.
        if self._is_recurrent and self.device.type == "cuda" and torch.is_grad_enabled():
            return cast(AbstractContextManager[None], torch.backends.cudnn.flags(enabled=False))
        return one_thread() if elements(inputs) <= self.short_elements else nullcontext()


_SLOW_S = 0.05
"""The seconds from which a forward pass is slow."""

_MOST_RESULTS = 4096
"""How many results of tests are kept for one model."""


def power_of_two(length: int) -> int:
    """Returns the exponent of the smallest power of two that is not below ``length``."""
    return max(0, length - 1).bit_length()


def arguments_kind(arguments: Mapping[str, Argument]) -> Hashable:
    """Returns what makes two requests run the same model: in Python 1 equals True, and 0.0 equals -0.0."""
    return frozenset((name, type(value), repr(value)) for name, value in arguments.items())


def elements(inputs: Inputs) -> int:
    """Returns the number of elements of all inputs."""
    return sum(tensor.numel() for tensor in inputs.values())


def dtype_text(tensor: Tensor) -> str:
    """Returns the data type as text without ``torch.``, like ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def _named(returned: Any) -> Outputs:
    if isinstance(returned, Tensor):
        return {"output": returned}
    if isinstance(returned, Mapping):
        outputs = {f"{key}{path}": tensor for key, value in returned.items() for path, tensor in leaves(value).items()}
    else:
        outputs = {f"output{path}": tensor for path, tensor in leaves(returned).items()}
    if not outputs:
        remedy = "let the adapter's forward return a tensor or a dict of tensors"
        raise error(Reason.MODEL_FAILED, f"the model returned no tensor but a {type(returned).__name__}; {remedy}")
    return outputs


def _array(name: str, output: Tensor) -> Tensor:
    if not has_array(output):
        remedy = "let the adapter's forward return it as to_padded_tensor(0.0)"
        raise error(Reason.MODEL_FAILED, f"{name!r} is a nested tensor, whose rows have lengths of their own; {remedy}")
    return dense(output)


def gradients(
    scalars: Tensor, inputs: Sequence[Tensor | GradientEdge], *, again: bool = False
) -> tuple[Tensor | None, ...]:
    """Returns the gradient of each row's scalar at each of ``inputs``, None for one that it does not reach.

    The scalar of a row depends on that row alone, so that the gradient of their sum holds the gradient of every row.
    No parameter's ``grad`` is written.

    Args:
        scalars: [batch], one target for each row.
        inputs: tensors of the graph, or places in it.
        again: keeps the graph for another backward pass.

    Raises:
        InvalidArgument: ``MODEL_FAILED``: the model's own backward raised.
    """
    roots: Any = inputs  # the type stubs accept either tensors or edges, but not both
    with failures_of("the model's backward"):
        arrived: tuple[Tensor | None, ...]
        arrived = torch.autograd.grad(scalars.sum(), roots, retain_graph=again, allow_unused=True)
        return arrived


def graph_nodes(root: Node | None, known: set[Node] | None = None) -> Iterator[Node]:
    """Yields the nodes of the graph from ``root`` on that are not ``known``, and adds them."""
    known = set() if known is None else known
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in known:
            known.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]
