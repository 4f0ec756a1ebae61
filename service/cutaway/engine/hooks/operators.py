"""Operators inside a module's forward: PyTorch functions and methods that are not modules, named by an address.

``layer3.1:relu#0`` is the first ``relu`` in one call of the module ``layer3.1``, outside of its children. A function
that is made of others (``multi_head_attention_forward``) is one operator. A function that computes nothing (``detach``)
or returns no tensor (``size``, ``item``) is none. PyTorch shows operators to a `TorchFunctionMode`,
https://pytorch.org/docs/stable/torch.overrides.html, in the thread that entered the mode and in no other.

Fused attention returns no weights. ``h.0.attn:attention_weights#0`` has those of the first fused attention in one call
of ``h.0.attn``, computed from the same arguments beside the pass. It is no operator of the model: a glob must name it.
"""

from __future__ import annotations

import inspect
import re
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import multi_head_attention_forward
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from cutaway.contract.errors import Reason, error
from cutaway.contract.requests import Point
from cutaway.contract.requests.captures import WEIGHTS, names_weights
from cutaway.contract.values import near_names
from cutaway.engine.hooks.capture_spec import CaptureSpec, merge_specs
from cutaway.engine.hooks.edits import NumberedEdit
from cutaway.engine.hooks.hook_site import INCOMING, OUTGOING, HookSite, shares_memory
from cutaway.engine.hooks.recording import RecordedCall, Recording, in_backward, inside_hook
from cutaway.engine.model.module_tree import ModuleTree, glob_matcher, is_glob
from cutaway.engine.runtime.numerics import argument_tensors, leaves, map_leaves, replace_arguments

# Names of PyTorch functions in operator addresses, and the functions that are not operators.

_COMPUTES_NOTHING = {"clone", "detach", "detach_", "requires_grad_", "retain_grad", "register_hook", "backward", "grad"}
"""Hooks and Captum call some of these, and must not change the numbers of the model's operators."""

_RETURNS_NO_TENSOR = {
    *("size", "dim", "ndimension", "numel", "nelement", "stride", "storage_offset", "item", "tolist", "numpy"),
    *("is_floating_point", "is_complex", "is_contiguous", "get_device", "data_ptr", "untyped_storage", "element_size"),
    *("__len__", "__bool__", "__int__", "__float__", "__complex__", "__index__", "__format__", "__repr__"),
    *("__contains__", "__set__", "_set_grad_enabled"),
}
"""Called very often; functions not listed here are recognised when they return."""

_PROPERTIES = {"T", "mT", "H", "mH", "real", "imag"}
"""Attributes of a tensor whose access computes a tensor."""


@lru_cache(maxsize=4096)
def operator_name(func: Callable[..., Any]) -> str:
    """Returns the name, like ``relu``, ``getitem`` or ``mT`` for a property; ``""`` if ``func`` is no operator."""
    name = str(getattr(func, "__name__", type(func).__name__))
    if name == "__get__":
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        return attribute if attribute in _PROPERTIES else ""
    if name in _COMPUTES_NOTHING or name in _RETURNS_NO_TENSOR:
        return ""
    # An overload has its own name behind a dot: relu.default.
    return (name.strip("_") if name.startswith("__") else name).partition(".")[0]


SiteFactory: TypeAlias = Callable[[str, Mapping[Point, CaptureSpec], Sequence[NumberedEdit]], HookSite]

RunningModule: TypeAlias = tuple[str, dict[str, int]]
"""A module whose forward is running, and the number of operators of each name that it has run."""


def is_address(name: str) -> bool:
    """Returns whether ``name`` is an operator's address, and not a module's name."""
    return "#" in name and re.search(r":[^:.#]+#[\d*?]+\Z", name) is not None


def operator_matcher(tree: ModuleTree, glob: str) -> Callable[[str], bool]:
    """Returns a function that tells whether ``glob`` matches an address by any name of its module.

    An address of weights must be named by it.
    """
    matches, of_weights = glob_matcher(glob), names_weights(glob)

    def matches_any(address: str) -> bool:
        own, _, operator = address.rpartition(":")
        names = own, *tree.aliases.get(own, ())
        return names_weights(address) == of_weights and any(matches(f"{name}:{operator}") for name in names)

    return matches_any


def nearest_addresses(address: str, ran: Sequence[str]) -> str:
    """Returns a hint for an error message: the addresses among ``ran`` that are most similar to ``address``."""
    if names_weights(address):
        own = [(module, name.split("#")) for module, _, name in (other.rpartition(":") for other in ran)]
        ran = [f"{module}:{WEIGHTS}#{number}" for module, (name, number) in own if name in _WEIGHED]
        if not ran:
            return "; no attention is fused here: its weights are those of softmax, or what its module returns"
    nearest = near_names(address, ran, n=3, cutoff=0.3) or list(ran[:3])
    return "; nearest: " + ", ".join(nearest) if nearest else "; no operator ran inside a module"


class _ThreadState(threading.local):
    """The running modules of this thread, innermost last; and whether the outermost one began with gradients on."""

    def __init__(self) -> None:
        self.running: list[RunningModule] = []
        self.differentiates = False


class Operators(TorchFunctionMode):
    """A mode that observes every operator while the block runs, and passes those with a site to it.

    Hooks on all modules (`enter`, `leave`) tell which module's forward is running.

    Args:
        recording: where to record.
        new_site: creates the site of an address.
        tree: the modules.
        specs: what to capture, by address or glob.
        edits: the edits, by address.
    """

    def __init__(
        self,
        recording: Recording,
        new_site: SiteFactory,
        tree: ModuleTree,
        specs: Mapping[str, Mapping[Point, CaptureSpec]],
        edits: Mapping[str, Sequence[NumberedEdit]],
    ) -> None:
        super().__init__()
        self._recording = recording
        self._new_site = new_site
        self._modules = tree.modules
        self._globs = [(operator_matcher(tree, glob), specs[glob]) for glob in specs if is_glob(glob)]
        self._specs = {address: specs[address] for address in specs if not is_glob(address)}
        self._edits = edits
        self._sites = {address: self._create_site(address) for address in {**self._specs, **edits}}
        # Only these change what autograd saves, so that a recomputation must repeat them.
        self._recomputes = bool(edits) or any(point.is_gradient for points in specs.values() for point in points)
        self._state = _ThreadState()
        self._thread = threading.get_ident()

    def enter(self, name: str, *_: Any) -> None:
        """Begins the forward of the module ``name``, as a forward pre-hook."""
        state = self._state
        if not state.running:
            state.differentiates = torch.is_grad_enabled()
        if self._recomputes:
            self._follow_checkpoint()
        state.running.append((name, {}))
        if threading.get_ident() != self._thread and not in_backward():
            self._refuse_thread(name)

    def leave(self, *_: Any) -> None:
        """Ends the innermost running module, as a forward hook."""
        self._state.running.pop()

    @contextmanager
    def repeating(self) -> Iterator[None]:
        """Runs a part of the model's forward once more, edited as it is, without an effect on the numbers behind it."""
        running = self._state.running
        self._state.running = _copied(running)
        try:
            yield
        finally:
            self._state.running = running

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Numbers an operator of the running module and runs it, with the captures and edits of its address."""
        kwargs = kwargs or {}
        name = operator_name(func)
        running = self._state.running
        if not (name and running) or inside_hook():
            return func(*args, **kwargs)
        if self._recomputes:
            self._follow_checkpoint()
        module, counts = running[-1]
        number = counts.get(name, 0)
        counts[name] = number + 1  # before it runs: an operator that raises and is caught keeps its number
        address = f"{module}:{name}#{number}"
        site = self._find_site(address)
        if site is None:
            returned = func(*args, **kwargs)
        else:
            hooked = _HookedOperator(site, func, name, args, kwargs)
            returned = self._run_hooked(address, hooked)
            args, kwargs = hooked.arguments
        if name in _WEIGHED and not in_backward():
            self._record_weights(module, counts, partial(_WEIGHED[name], *args, **kwargs))
        if isinstance(returned, Tensor) or name in _RETURNS_NOTHING or leaves(returned):
            self._recording.operators[address] = None
        else:
            counts[name] = number
        return returned

    def _record_weights(self, module: str, counts: dict[str, int], weights: Callable[[], Tensor]) -> None:
        """Records the weights of a fused attention of a running module, if they are captured."""
        address = f"{module}:{WEIGHTS}#{counts.get(WEIGHTS, 0)}"
        counts[WEIGHTS] = counts.get(WEIGHTS, 0) + 1
        site = self._find_site(address)
        if site is not None:
            self._recording.operators[address] = None
            with self._recording.hook_scope(), torch.no_grad():
                found = _by_head(weights(), self._modules[module])
                site.record(self._recording.begin_call(address), OUTGOING, {"": found})

    def _find_site(self, address: str) -> HookSite | None:
        if not self._globs:
            return self._sites.get(address)
        if address not in self._sites:
            with self._recording.hook_scope():
                self._sites[address] = self._create_site(address)
        return self._sites[address]

    def _create_site(self, address: str) -> HookSite | None:
        merged: dict[Point, CaptureSpec] = {}
        for specs in [specs for matches, specs in self._globs if matches(address)]:
            merge_specs(address, merged, specs)
        merge_specs(address, merged, self._specs.get(address, {}))
        edits = self._edits.get(address, ())
        return self._new_site(address, merged, edits) if merged or edits else None

    def _run_hooked(self, address: str, operator: _HookedOperator) -> Any:
        with self._recording.hook_scope():
            self._refuse_reentrant_checkpoint(address)
            call = operator.begin()
        returned = operator.run()
        with self._recording.hook_scope():
            result = operator.process_result(returned)
            calls = self._recording.calls.get(address, [])  # a recomputation in the backward pass begins no call
            if not call.dtypes[OUTGOING.value] and call in calls:  # it returned no tensor: it is no operator
                calls.remove(call)
            return result

    def _follow_checkpoint(self) -> None:
        """Makes a recomputation by activation checkpointing repeat copies and edits.

        Checkpointing runs part of a forward again in the backward pass, without this mode and without module hooks. Its
        function is therefore replaced by one that enters the mode, inside the modules that are running now.
        """
        frame = _checkpoint_frame()
        if frame is not None and not isinstance(frame.recompute_fn, _Recomputation):
            running = _copied(self._state.running[-1:])
            frame.recompute_fn = _Recomputation(self._recompute, frame.recompute_fn, running)

    def _recompute(self, function: Callable[..., Any], running: Sequence[RunningModule], *args: Any) -> Any:
        """Runs a checkpointed ``function`` under this mode again, during the backward pass.

        Args:
            function: what checkpointing would run.
            running: the modules whose forward is executing there, the innermost last.
            args: those of ``function``.
        """
        before, self._state.running = self._state.running, _copied(running)
        try:
            with self:
                return function(*args)
        finally:
            self._state.running = before

    def _refuse_reentrant_checkpoint(self, address: str) -> None:
        """Refuses reentrant checkpointing, which runs forward without a graph and builds that in the backward pass."""
        edits = [number for number, edit in self._edits.get(address, ()) if not edit.point.is_gradient]
        if edits and self._state.differentiates and not torch.is_grad_enabled() and _in_reentrant_checkpoint():
            why = "which computes it again for the gradients, unedited: let the model use use_reentrant=False"
            text = f"{address!r} runs inside reentrant activation checkpointing, {why}"
            raise error(Reason.EDIT_INAPPLICABLE, text, f"edits[{edits[0]}].op")

    def _refuse_thread(self, module: str) -> None:
        """Raises if a capture or an edit names an operator of ``module``, which runs in a thread of the model's own.

        A mode does not see operators there.
        """
        fields = {address: f"{next(iter(specs.values())).field}.op" for address, specs in self._specs.items()}
        fields |= {address: f"edits[{edits[0][0]}].op" for address, edits in self._edits.items()}
        for address in [address for address in fields if address.rpartition(":")[0] == module]:
            why = f"the model runs {module!r} in a thread of its own, where operators are not seen"
            with self._recording.hook_scope():
                raise error(Reason.OP_NOT_FOUND, why, fields[address])


def _copied(running: Sequence[RunningModule]) -> list[RunningModule]:
    return [(module, dict(counts)) for module, counts in running]


class _Recomputation(partial[Any]):
    """A checkpointed function that runs under the mode again."""


def _checkpoint_frame() -> Any:
    """Returns the state of the `torch.utils.checkpoint.checkpoint` that is running, if any. Only its hook on the
    tensors that autograd saves leads to it."""
    pack, _ = torch._C._autograd._top_saved_tensors_default_hooks(True) or (None, None)
    code = getattr(pack, "__code__", None)
    cells = dict(zip(code.co_freevars, pack.__closure__ or ())) if code is not None else {}
    frame = cells["frame"].cell_contents if "frame" in cells else None
    return frame if hasattr(frame, "recompute_fn") else None


def _in_reentrant_checkpoint() -> bool:
    codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
    return any(code.co_name == "forward" and code.co_filename == checkpoint.__file__ for code in codes)


@dataclass
class _HookedOperator:
    """One run of an operator that has a site.

    An operator that writes into a tensor gets a substitute to write into, which is then copied back. So the model
    continues with its own tensor, whatever it does with the operator's result. An edit does not overwrite values that
    the operator saves for its backward. The gradients before and behind the operator are distinct.
    """

    site: HookSite
    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def begin(self) -> RecordedCall:
        """Begins the call: edits, records and replaces the arguments."""
        name, args, kwargs = self.name, self.args, self.kwargs
        self._call = self.site.recording.begin_call(self.site.name)
        self._outs = {f"out{path}": tensor for path, tensor in leaves(kwargs.get("out")).items()}
        self._inputs = {
            path: tensor for path, tensor in argument_tensors(args, kwargs).items() if path not in self._outs
        }
        self._target = inplace_target(name, args, kwargs)
        self._target_path = next((path for path, tensor in self._inputs.items() if tensor is self._target), "")
        self._substitutes = self._process_inputs()
        return self._call

    def _process_inputs(self) -> dict[str, Tensor]:
        """Edits and records the arguments, and returns their substitutes. Copies a tensor before the operator writes
        into it, where an edit or a gradient needs the old values."""
        site, target = self.site, self._target
        if target is not None and any(site.edits_values(s) or site.needs_gradients(s) for s in (INCOMING, OUTGOING)):
            # The operator must not write to tensors that an edit saves for its backward.
            for path in [path for path, tensor in self._inputs.items() if shares_memory(tensor, [target])]:
                self._inputs[path] = self._inputs[path].clone()
        substitutes = site.process(self._call, INCOMING, self._inputs, shared=lambda _: True)
        if target is not None and substitutes[self._target_path] is not self._inputs[self._target_path]:
            # Nor to a tensor with a gradient hook: if it is a view, its gradient would end there.
            substitutes[self._target_path] = substitutes[self._target_path].clone()
        return substitutes

    def run(self) -> Any:
        """Returns what the operator returns."""
        try:
            return self._run()
        except RuntimeError:
            # Some arguments cannot have a gradient (running statistics, class weights): their copies must not need one.
            constants = [path for path, tensor in self._inputs.items() if not tensor.requires_grad]
            constants = [path for path in constants if self._substitutes[path].requires_grad]
            if not constants:
                raise
            self._substitutes.update({path: self._substitutes[path].detach() for path in constants})
            return self._run()

    def _run(self) -> Any:
        args, kwargs = self.arguments
        return self.func(*args, **kwargs)

    @property
    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of the operator, edited."""
        return replace_arguments(self.args, self.kwargs, {**self._substitutes, **self._outs})

    def process_result(self, returned: Any) -> Any:
        """Edits and records what the operator returned, and returns what the model continues with."""
        substitute = None if self._target is None else self._substitutes[self._target_path]
        tensors = {"": substitute} if self.name in _RETURNS_NOTHING and substitute is not None else leaves(returned)
        shared = partial(shares_memory, others=self._substitutes.values())
        results = self.site.process(self._call, OUTGOING, tensors, shared, bare=list(self._outs.values()))
        if self._target is not None and substitute is not self._target:
            if self.name in _CHANGES_SHAPE:
                self.func(*self.args, **self.kwargs)
            results = dict.fromkeys(results, self._target.copy_(next(iter(results.values()))))
        return map_leaves(returned, lambda path, _: results[path])


# The weights of fused attention, computed once more by PyTorch's own unfused code.


def _weights_of_product(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Returns those of `scaled_dot_product_attention` before dropout, [..., queries, keys]; 0 for a query that sees no
    key."""
    if attn_mask is not None and attn_mask.dtype is torch.bool:  # the function below would add 0 and 1
        attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill(~attn_mask, -torch.inf)
    options = {"scale": scale, "enable_gqa": enable_gqa}
    unfused = torch.ops.aten._scaled_dot_product_attention_math
    weights: Tensor = unfused(query, key, value, attn_mask, 0.0, is_causal, None, **options)[1]
    return weights


def _weights_of_heads(*args: Any, **kwargs: Any) -> Tensor:
    """Returns those of `multi_head_attention_forward` by head, [batch, heads, queries, keys]."""
    given = inspect.signature(multi_head_attention_forward).bind(*args, **kwargs)
    given.arguments |= {"need_weights": True, "average_attn_weights": False, "training": False}
    weights = multi_head_attention_forward(*given.args, **given.kwargs)[1]
    if weights is None:
        raise error(Reason.INTERNAL, "attention returned no weights")
    return weights


_WEIGHED: Mapping[str, Callable[..., Tensor]] = {
    "scaled_dot_product_attention": _weights_of_product,
    "multi_head_attention_forward": _weights_of_heads,
}
"""The weights of each operator that fuses attention, from its arguments."""


def _by_head(weights: Tensor, module: nn.Module) -> Tensor:
    """Returns ``weights`` [batch, heads, queries, keys]. transformers packs the heads that share keys as the queries,
    where each row has one query."""
    group, heads = getattr(module, "num_key_value_groups", 1), getattr(module, "config", None)
    packed = (getattr(heads, "num_attention_heads", 0), group)
    is_packed = weights.ndim == 4 and group > 1 and (weights.shape[1] * group, weights.shape[2]) == packed
    return weights.flatten(1, 2).unsqueeze(2) if is_packed else weights


_RETURNS_NOTHING = {"setitem"}
"""Operators that return nothing, and change their first argument."""

_CHANGES_SHAPE = {"as_strided_", "squeeze_", "swapaxes_", "swapdims_", "t_", "transpose_", "unsqueeze_"}
"""Operators that change a tensor's shape, and none of its values."""

_WRITES_IN_PLACE = {"iand", "ilshift", "ior", "irshift", "ixor"}
"""Operators that write in place although their names do not end in an underscore."""


def inplace_target(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor | None:
    """Returns the tensor that the operator writes into, which is its first argument; None if it writes into none."""
    if not (name.endswith("_") or name in _RETURNS_NOTHING or name in _WRITES_IN_PLACE or kwargs.get("inplace")):
        return None
    first = args[0] if args else next(iter(kwargs.values()), None)
    return first if isinstance(first, Tensor) else None
