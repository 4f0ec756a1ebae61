"""Requests as plain typed values: numpy arrays, no torch and no protobuf.

The client builds them, the wire package encodes and decodes them, the engine runs them. Axis 0 of shapes is the batch.

The ``__all__`` of a module lists what users of the client need, and `cutaway` has the same names. The base classes and
tables that only this project needs are listed here.
"""

from cutaway.requests.attributions import *
from cutaway.requests.attributions import AtLayer as AtLayer
from cutaway.requests.attributions import LayerAttribution as LayerAttribution
from cutaway.requests.attributions import PathAttribution as PathAttribution
from cutaway.requests.attributions import field_name as field_name
from cutaway.requests.attributions import method_field as method_field
from cutaway.requests.baselines import *
from cutaway.requests.baselines import Baselines as Baselines
from cutaway.requests.baselines import Distributions as Distributions
from cutaway.requests.captures import *
from cutaway.requests.captures import POINTS as POINTS
from cutaway.requests.captures import AxisReduction as AxisReduction
from cutaway.requests.captures import PointName as PointName
from cutaway.requests.captures import Reduction as Reduction
from cutaway.requests.conditions import *
from cutaway.requests.differences import *
from cutaway.requests.differences import Difference as Difference
from cutaway.requests.differences import Expectation as Expectation
from cutaway.requests.differences import ExpectedGradient as ExpectedGradient
from cutaway.requests.edits import *
from cutaway.requests.inspect_request import *
from cutaway.requests.neurons import *
from cutaway.requests.neurons import NeuronAttribution as NeuronAttribution
from cutaway.requests.noise import *
from cutaway.requests.noise import Metric as Metric
from cutaway.requests.perturbations import *
from cutaway.requests.perturbations import Grouped as Grouped
from cutaway.requests.perturbations import Perturbation as Perturbation
from cutaway.requests.perturbations import Surrogate as Surrogate
from cutaway.requests.relevance import *
from cutaway.requests.relevance import LrpRule as LrpRule
from cutaway.requests.relevance import Propagation as Propagation
from cutaway.requests.targets import *
