"""Requests as plain typed values: numpy arrays, no torch and no protobuf.

The client builds them, the wire package encodes and decodes them, the engine runs them. Axis 0 of shapes is the batch.

The ``__all__`` of a module lists what users of the client need, and `cutaway` has the same names. The base classes and
tables that only this project needs are listed here.
"""

from dataclasses import is_dataclass

from cutaway.contract.requests.attacks import *
from cutaway.contract.requests.attacks import Attack as Attack
from cutaway.contract.requests.attributions import *
from cutaway.contract.requests.attributions import AtLayer as AtLayer
from cutaway.contract.requests.attributions import Baselines as Baselines
from cutaway.contract.requests.attributions import Distributions as Distributions
from cutaway.contract.requests.attributions import LayerAttribution as LayerAttribution
from cutaway.contract.requests.attributions import NeuronAttribution as NeuronAttribution
from cutaway.contract.requests.attributions import PathAttribution as PathAttribution
from cutaway.contract.requests.attributions import field_name as field_name
from cutaway.contract.requests.attributions import method_field as method_field
from cutaway.contract.requests.backpropagation import *
from cutaway.contract.requests.backpropagation import Expectation as Expectation
from cutaway.contract.requests.backpropagation import ExpectedGradient as ExpectedGradient
from cutaway.contract.requests.backpropagation import LrpRule as LrpRule
from cutaway.contract.requests.backpropagation import Propagation as Propagation
from cutaway.contract.requests.backpropagation import RescaleAttribution as RescaleAttribution
from cutaway.contract.requests.captures import *
from cutaway.contract.requests.captures import POINTS as POINTS
from cutaway.contract.requests.captures import AxisReduction as AxisReduction
from cutaway.contract.requests.captures import FloatingType as FloatingType
from cutaway.contract.requests.captures import PointName as PointName
from cutaway.contract.requests.captures import Position as Position
from cutaway.contract.requests.captures import Reduction as Reduction
from cutaway.contract.requests.edits import *
from cutaway.contract.requests.edits import VectorEdit as VectorEdit
from cutaway.contract.requests.fields import advise_on_wrong_arguments
from cutaway.contract.requests.inspect_request import *
from cutaway.contract.requests.inspect_request import INPUT_FIELDS as INPUT_FIELDS
from cutaway.contract.requests.inspect_request import JOB_FIELDS as JOB_FIELDS
from cutaway.contract.requests.inspect_request import OF_ONE_REPLY as OF_ONE_REPLY
from cutaway.contract.requests.inspect_request import Compression as Compression
from cutaway.contract.requests.perturbations import *
from cutaway.contract.requests.perturbations import Grouped as Grouped
from cutaway.contract.requests.perturbations import Perturbation as Perturbation
from cutaway.contract.requests.perturbations import Surrogate as Surrogate
from cutaway.contract.requests.quality import *
from cutaway.contract.requests.quality import Localisation as Localisation
from cutaway.contract.requests.quality import Metric as Metric
from cutaway.contract.requests.quality import Nearby as Nearby
from cutaway.contract.requests.quality import Removal as Removal
from cutaway.contract.requests.targets import *
from cutaway.contract.requests.targets import is_several as is_several

for _kind in list(vars().values()):
    if is_dataclass(_kind):
        advise_on_wrong_arguments(_kind)
