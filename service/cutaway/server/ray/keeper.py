"""A process that has Ray Serve start the workers of a model store.

Usage: ``python -m cutaway.server.ray.keeper PLAN``, where PLAN is a `RayPlan` as JSON.

A model is a Serve application of its own, and its workers are the replicas. The gateway calls them through sockets of
this process (`Entrances`), as it calls workers of its own machine. This process is the only one beside the gateway that
uses Ray: when the cluster is lost, Ray ends the process that uses it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import secrets
import signal
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cutaway.server import load_records
from cutaway.server.ray import plan as ray_variables
from cutaway.server.ray.plan import CANNOT_LOAD, PlannedModel, RayPlan, workers_wanted
from cutaway.server.ray.tunnel import (
    READ_BYTES,
    Address,
    Connection,
    Identity,
    MutualTls,
    join,
    new_identity,
    notice_loss,
)
from cutaway.server.settings import Settings
from cutaway.server.worker_protocol import listening


class _Entrance(NamedTuple):
    """The socket of one replica; the gateway deletes it when the replica does not answer."""

    path: Path
    server: asyncio.Server


class Entrances:
    """The gateway's ends of the tunnels: a Unix socket for every replica.

    Args:
        directory: the directory in which the gateway looks for workers.
        tls: this side of the tunnels.
    """

    def __init__(self, directory: Path, tls: MutualTls) -> None:
        self._directory = directory
        self._tls = tls
        self._numbers = itertools.count(1)
        self._entrances: dict[Address, _Entrance] = {}

    async def open(self, host: str) -> Address:
        """Begins to listen for replicas that announce their addresses; returns the address to announce to."""
        return await self._tls.listen(host, self._announced)

    async def _announced(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            line = await reader.readline()
            writer.close()
            if line:
                await self._open(Address(*json.loads(line)))

    async def _open(self, address: Address) -> None:
        self._close_deleted()
        if address not in self._entrances:
            path = self._directory / str(next(self._numbers))
            server = await asyncio.start_unix_server(
                partial(self._connect, address), sock=listening(path), limit=READ_BYTES
            )
            self._entrances[address] = _Entrance(path, server)

    def _close_deleted(self) -> None:
        for address, entrance in [*self._entrances.items()]:
            if not entrance.path.exists():
                entrance.server.close()
                del self._entrances[address]

    async def _connect(self, address: Address, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Joins a connection of the gateway to one to the replica; closes it if there is none."""
        try:
            replica = await self._tls.connect(address)
        except OSError:
            writer.close()
            return
        notice_loss(replica.writer)
        await join(Connection(reader, writer), replica)


_POLL_S = 0.5
_UPSCALE_DELAY_S = 2.0
_LOOK_BACK_S = 3.0
_METRICS_INTERVAL_S = 1.0
_HEALTH_PERIOD_S = 1.0
_FORCED_S = 5.0
"""Seconds that a replica gets to end beyond its grace, before Serve kills it."""

_OBJECT_STORE_BYTES = 128 << 20
"""The object store of a cluster that is started here, beyond the archives."""

_OF_WORKERS = (
    *("CUTAWAY_MAX_MESSAGE_BYTES", "CUTAWAY_REQUEST_MEMORY_BYTES", "CUTAWAY_MAX_ROWS", "CUTAWAY_MAX_CAPTURES"),
    *("CUTAWAY_MAX_ATTRIBUTIONS", "CUTAWAY_MAX_STEPS", "CUTAWAY_MAX_PASSES"),
    *("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "THP_MEM_ALLOC_ENABLE", "PYTHONUNBUFFERED"),
)
"""The environment variables that workers get; Ray passes none by itself."""


async def keep(plan: RayPlan) -> None:
    """Starts the workers, and runs their tunnels until SIGTERM."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    reporting = asyncio.ensure_future(_serve(plan))
    stopping = asyncio.ensure_future(stopped.wait())
    await asyncio.wait([reporting, stopping], return_when=asyncio.FIRST_COMPLETED)
    if not stopping.done():
        reporting.result()
    await asyncio.to_thread(_delete, plan)


async def _serve(plan: RayPlan) -> None:
    """Deploys the models, then tells the gateway why one cannot be loaded; never returns."""
    import ray

    own, theirs = new_identity(), new_identity()
    entrances = Entrances(plan.sockets, MutualTls(own, theirs.certificate))
    await asyncio.to_thread(_connect, plan)
    keeper = await entrances.open(ray.util.get_node_ip_address())
    await asyncio.to_thread(_deploy, plan, keeper, theirs, own.certificate)
    while True:
        await asyncio.to_thread(_note_failures, plan)
        await asyncio.sleep(_POLL_S)


def _connect(plan: RayPlan) -> None:
    """Connects to the cluster, or starts one on this machine; starts Serve without its HTTP proxies."""
    import ray
    from ray import serve

    options: dict[str, Any] = {"address": plan.settings.ray_address}
    if not plan.settings.ray_address:
        store_bytes = _OBJECT_STORE_BYTES + 2 * plan.archive_bytes
        options = {"address": "local", "include_dashboard": False, "_temp_dir": os.getcwd()}
        options["object_store_memory"] = store_bytes
    ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    serve.start(proxy_location="Disabled")
    _delete(plan)  # those of a keeper before this one, which was killed


def _deploy(plan: RayPlan, keeper: Address, identity: Identity, trusted: bytes) -> None:
    """Deploys an application for every model, and does not wait for its workers."""
    from ray import serve

    from cutaway.server.ray.replica import Assignment, Replica

    assignment = Assignment(keeper, identity, trusted, plan.settings)
    for model in plan.models:
        application = _application(plan, model)
        deployment = serve.deployment(Replica).options(**_options(plan.settings, model))
        replicas = deployment.bind(model.name, application, assignment, [_shared(model.archive)])
        serve.run_many(
            [serve.RunTarget(replicas, name=application, route_prefix=None)],
            wait_for_ingress_deployment_creation=False,
            wait_for_applications_running=False,
        )


def _options(settings: Settings, model: PlannedModel) -> dict[str, Any]:
    """Returns the options of a deployment: how many replicas, on what, and when Serve ends one."""
    variables = {name: os.environ[name] for name in _OF_WORKERS if name in os.environ}
    if not settings.ray_address:
        variables["TMPDIR"] = os.getcwd()  # a replica may be killed, and this directory is deleted with the keeper
    options: dict[str, Any] = {
        "ray_actor_options": {
            "num_cpus": settings.ray_cpus,
            "num_gpus": settings.ray_gpus,
            "runtime_env": {"env_vars": variables},
        },
        "health_check_period_s": _HEALTH_PERIOD_S,
        "health_check_timeout_s": settings.hang_s,
        "graceful_shutdown_timeout_s": settings.grace_s + _FORCED_S,
    }
    if model.least == model.most:
        return {**options, "num_replicas": model.least}
    scaling = {
        "min_replicas": model.least,
        "max_replicas": model.most,
        "target_ongoing_requests": settings.ray_calls_per_worker,
        "upscale_delay_s": _UPSCALE_DELAY_S,
        "downscale_delay_s": settings.ray_downscale_delay_s,
        "look_back_period_s": _LOOK_BACK_S,
        "metrics_interval_s": _METRICS_INTERVAL_S,
        "policy": {"policy_function": workers_wanted},
    }
    return {**options, "autoscaling_config": scaling}


def _shared(archive: Path) -> Any:
    """Returns a reference to the bytes of an archive in Ray's object store. They are mapped, so that no copy of them is
    made in the memory of this process."""
    import ray

    return ray.put(np.asarray(np.memmap(archive, mode="r")))


def _application(plan: RayPlan, model: PlannedModel) -> str:
    return f"{plan.run}-{model.name.model}-{model.name.version}"


def _note_failures(plan: RayPlan) -> None:
    """Notes and prints why models cannot be loaded, from Serve's messages about their replicas."""
    from ray import serve

    applications = serve.status().applications
    for model in plan.models:
        status = applications.get(_application(plan, model))
        for deployment in status.deployments.values() if status else ():
            why = _load_failure(status.status, deployment.message)
            if why and why != load_records.noted(plan.sockets, model.name, load_records.FAILED):
                load_records.note(plan.sockets, model.name, load_records.FAILED, why)
                print(f"cutaway cannot load {model.name.model} {model.name.version}: {why}", flush=True)


def _load_failure(status: str, message: str) -> str:
    """Returns why replicas cannot be loaded: what they say, or what Ray says of those that ended."""
    for line in message.splitlines():
        if CANNOT_LOAD in line:
            return line.partition(CANNOT_LOAD)[2]
    return f"its processes ended while it loaded: {' '.join(message.split())}" if status == "DEPLOY_FAILED" else ""


def _delete(plan: RayPlan) -> None:
    """Ends the applications of this run; their replicas finish the calls that they have."""
    from ray import serve

    for name in serve.status().applications:
        if name.startswith(f"{plan.run}-"):
            serve.delete(name, _blocking=False)


def _main() -> None:
    plan = RayPlan.model_validate_json(sys.argv[1])
    ray_variables.prepare()
    if not plan.settings.ray_address and "RAY_AUTH_MODE" not in os.environ:
        # Else Ray would keep a token for all clusters of this user in the home directory.
        os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=secrets.token_hex(32))
    asyncio.run(keep(plan))


if __name__ == "__main__":
    _main()
