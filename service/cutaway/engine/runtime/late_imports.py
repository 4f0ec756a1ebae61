"""What torch imports when a gradient or a derivative in forward mode is first taken: imported by whoever imports this.

The first explanation of a process would otherwise wait for it, a second or more. The workers of ``--engine processes``
share its 70 MiB, because they are forks of a process that has it.
"""

import torch._decomp.decompositions_for_jvp
import torch._dynamo
import torch.fx.experimental.symbolic_shapes  # noqa: F401
