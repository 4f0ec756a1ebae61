"""The memory of passes: the bytes that are alive at one time, passes in parts that take less of them, and outputs that
several targets share."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from cutaway.engine.runtime.numerics import arrays_of


def run_in_parts(forward: Callable[..., Tensor], size: int, tensors: Sequence[Tensor]) -> Tensor:
    """Returns ``forward`` in parts of ``size`` rows at most. Graphs are built one at a time, when the backward pass
    reaches their part."""
    with set_checkpoint_early_stop(False):  # stopping early, it would raise inside the model
        parts = zip(*(tensor.split(size) for tensor in tensors))
        return torch.cat([checkpoint(forward, *part, use_reentrant=False) for part in parts])


class SharedPasses:
    """Outputs of passes without gradients, which are the same for several targets that Captum explains one by one.

    Attributes:
        again: what one more pass at the input returned, which shows whether the model returns the same twice.
        known: what was computed for all targets at once.
    """

    def __init__(self) -> None:
        self.again: Tensor | None = None
        self.known: dict[Hashable, Any] = {}
        self._outputs: dict[bytes, Tensor] = {}
        self._is_open = False

    @contextmanager
    def used(self) -> Iterator[None]:
        """Lets passes in the block take outputs of earlier ones."""
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def output(self, inputs: Mapping[str, Tensor], run: Callable[[], Tensor]) -> Tensor:
        """Returns what ``run`` does, or did in an earlier block for the same ``inputs``."""
        if not self._is_open:
            return run()
        known = hashlib.blake2b()
        for name, tensor in inputs.items():
            known.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            known.update(tensor.detach().flatten().view(torch.uint8).cpu().numpy().data)
        key = known.digest()
        if key not in self._outputs:
            self._outputs[key] = run().detach()
        return self._outputs[key].clone()


class LiveBytes(TorchFunctionMode):
    """A mode that counts the bytes of tensors that operators return.

    A dispatch mode would see more, the parts of an operator, but the first one imports a second's worth of modules.

    Attributes:
        most: the most bytes that were alive at one time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.most: int = 0
        self._now = 0
        self._known: weakref.WeakSet[UntypedStorage] = weakref.WeakSet()

    def ignore(self, tensors: list[Tensor]) -> None:
        """Leaves ``tensors`` and views of them out of the count."""
        with torch._C.DisableTorchFunction():  # the arrays of a sparse tensor come from operators
            self._known.update(array.untyped_storage() for tensor in tensors for array in arrays_of(tensor))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(returned):
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided and not tensor.is_meta:
                self._count(tensor.untyped_storage())
        return returned

    def _count(self, storage: UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        self._now += storage.nbytes()
        self.most = max(self.most, self._now)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self._now -= size
