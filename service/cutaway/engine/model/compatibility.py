"""Refuses models that cannot be inspected, when they are loaded: with torch 2.13, hooks never fire on them, or
gradients are missing, without any error."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from cutaway.errors import Reason, error


def require_inspectable(module: nn.Module) -> None:
    """Checks every module, parameter and buffer.

    Raises:
        FailedPrecondition: ``MODEL_COMPILED``, ``MODEL_SCRIPTED`` or ``MODEL_QUANTISED``.
        InvalidArgument: ``ADAPTER_INVALID``.
    """
    for name, child in module.named_modules():
        reason, fault = _module_fault(child)
        if fault:
            raise error(reason, f"{_where('module', name)} {fault}")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        fault = _tensor_fault(tensor)
        if fault:
            raise error(Reason.ADAPTER_INVALID, f"{_where('tensor', name)} {fault}")


def _module_fault(child: nn.Module) -> tuple[Reason, str]:
    kind = type(child)
    if isinstance(child, torch.jit.ScriptModule):
        return Reason.MODEL_SCRIPTED, "is a ScriptModule, which takes no hooks: load eager code"
    if kind.__name__ == "OptimizedModule" or child._compiled_call_impl is not None:
        return Reason.MODEL_COMPILED, "went through torch.compile, where hooks never fire: return the model uncompiled"
    if kind.__module__.startswith(("torch.ao.nn.", "torch.nn.quantized")) and "quantized" in kind.__module__:
        return Reason.MODEL_QUANTISED, f"is quantised ({kind.__name__}) and has no gradients: load the float model"
    if isinstance(child, nn.DataParallel):
        return Reason.ADAPTER_INVALID, "is a DataParallel, whose replicas take no hooks: return the model inside it"
    return Reason.ADAPTER_INVALID, ""


def _tensor_fault(tensor: Tensor) -> str:
    if is_lazy(tensor):
        return "is not initialised: run the model once before it is returned"
    if tensor.is_meta:
        return "has no memory (device meta): load the weights"
    if tensor.is_inference():
        return "was made under torch.inference_mode, and can have no gradient: load the model outside of it"
    return ""


def _where(kind: str, name: str) -> str:
    return f"{kind} {name!r}" if name else "the model"
