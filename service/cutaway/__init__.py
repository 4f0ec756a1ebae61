"""Cutaway: PyTorch models served with their insides visible, and with proof.

This is the client side; it imports no torch. The server side is `cutaway.gateway`.
"""

import sys

from cutaway.client.client import AsyncClient as AsyncClient
from cutaway.client.client import Client as Client
from cutaway.client.transport import GeneratedToken as GeneratedToken
from cutaway.client.trust import Tls as Tls
from cutaway.contract import errors as errors
from cutaway.contract import requests as requests
from cutaway.contract import results as results
from cutaway.contract.errors import CutawayError as CutawayError
from cutaway.contract.errors import DeadlineExceeded as DeadlineExceeded
from cutaway.contract.errors import FailedPrecondition as FailedPrecondition
from cutaway.contract.errors import Internal as Internal
from cutaway.contract.errors import InvalidArgument as InvalidArgument
from cutaway.contract.errors import NotFound as NotFound
from cutaway.contract.errors import PermissionDenied as PermissionDenied
from cutaway.contract.errors import Reason as Reason
from cutaway.contract.errors import ResourceExhausted as ResourceExhausted
from cutaway.contract.errors import Unauthenticated as Unauthenticated
from cutaway.contract.errors import Unavailable as Unavailable
from cutaway.contract.errors import Unimplemented as Unimplemented
from cutaway.contract.requests.attacks import *
from cutaway.contract.requests.attributions import *
from cutaway.contract.requests.backpropagation import *
from cutaway.contract.requests.captures import *
from cutaway.contract.requests.edits import *
from cutaway.contract.requests.inspect_request import *
from cutaway.contract.requests.perturbations import *
from cutaway.contract.requests.quality import *
from cutaway.contract.requests.targets import *
from cutaway.contract.results import AttackResult as AttackResult
from cutaway.contract.results import AttributionResult as AttributionResult
from cutaway.contract.results import Better as Better
from cutaway.contract.results import CapturedCall as CapturedCall
from cutaway.contract.results import Cause as Cause
from cutaway.contract.results import Check as Check
from cutaway.contract.results import ConceptResult as ConceptResult
from cutaway.contract.results import EditReceipt as EditReceipt
from cutaway.contract.results import Estimate as Estimate
from cutaway.contract.results import FinishReason as FinishReason
from cutaway.contract.results import GeneratedStep as GeneratedStep
from cutaway.contract.results import InfluenceResult as InfluenceResult
from cutaway.contract.results import InspectResult as InspectResult
from cutaway.contract.results import MetricResult as MetricResult
from cutaway.contract.results import ModelDetail as ModelDetail
from cutaway.contract.results import ModuleCapture as ModuleCapture
from cutaway.contract.results import Outline as Outline
from cutaway.contract.results import Progress as Progress
from cutaway.contract.results import RowCheck as RowCheck
from cutaway.contract.results import TokenAttribution as TokenAttribution
from cutaway.contract.results import Verdict as Verdict
from cutaway.contract.results import WarningCode as WarningCode
from cutaway.contract.values import __version__ as __version__
from cutaway.views.inspection import Inspection as Inspection

# Adapters in archives import these names from here.
for _module in (errors, requests, results):
    sys.modules[_module.__name__.replace(".contract", "")] = _module
