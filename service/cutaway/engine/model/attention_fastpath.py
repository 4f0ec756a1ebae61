"""Switches off the fast path of PyTorch's transformer layers while a model runs.

The fast path is taken where no gradient is computed and no hook is registered, hides modules from hooks and turns
padded batches into nested tensors: the same request would compute another function depending on what else it contains.
"""

from __future__ import annotations

import torch

from cutaway.engine.runtime.process_setting import ProcessSetting

NO_FASTPATH = ProcessSetting(
    torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled, value=False
)
