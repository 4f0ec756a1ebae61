"""Cutaway: PyTorch models served with their insides visible, and with proof.

This is the client side; it imports no torch. The server side is `cutaway.gateway`.
"""

from cutaway.client.async_client import AsyncClient as AsyncClient
from cutaway.client.sync_client import Client as Client
from cutaway.display.inspection import Inspection as Inspection
from cutaway.errors import CutawayError as CutawayError
from cutaway.errors import DeadlineExceeded as DeadlineExceeded
from cutaway.errors import FailedPrecondition as FailedPrecondition
from cutaway.errors import Internal as Internal
from cutaway.errors import InvalidArgument as InvalidArgument
from cutaway.errors import NotFound as NotFound
from cutaway.errors import PermissionDenied as PermissionDenied
from cutaway.errors import Reason as Reason
from cutaway.errors import ResourceExhausted as ResourceExhausted
from cutaway.errors import Unauthenticated as Unauthenticated
from cutaway.errors import Unavailable as Unavailable
from cutaway.errors import Unimplemented as Unimplemented
from cutaway.requests.attributions import *
from cutaway.requests.baselines import *
from cutaway.requests.captures import *
from cutaway.requests.conditions import *
from cutaway.requests.differences import *
from cutaway.requests.edits import *
from cutaway.requests.inspect_request import *
from cutaway.requests.neurons import *
from cutaway.requests.noise import *
from cutaway.requests.perturbations import *
from cutaway.requests.relevance import *
from cutaway.requests.targets import *
from cutaway.results import AttributionResult as AttributionResult
from cutaway.results import CapturedCall as CapturedCall
from cutaway.results import Cause as Cause
from cutaway.results import Check as Check
from cutaway.results import Estimate as Estimate
from cutaway.results import InspectResult as InspectResult
from cutaway.results import MetricResult as MetricResult
from cutaway.results import ModelDetail as ModelDetail
from cutaway.results import ModuleCapture as ModuleCapture
from cutaway.results import Outline as Outline
from cutaway.results import RowCheck as RowCheck
from cutaway.results import TokenAttribution as TokenAttribution
from cutaway.results import Verdict as Verdict
from cutaway.results import WarningCode as WarningCode
from cutaway.trust import Tls as Tls
from cutaway.version import __version__ as __version__
