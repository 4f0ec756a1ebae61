"""Stock TorchServe, started as we start ours: the same quiet log, no tokens, free ports."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

from bench.pipe import announce

CONFIG = """\
inference_address=http://127.0.0.1:{0}
management_address=http://127.0.0.1:{0}
grpc_inference_port={1}
grpc_management_port={2}
initial_worker_port={3}
job_queue_size=1000
max_request_size=2000000000
max_response_size=2000000000
disable_token_authorization=true
enable_metrics_api=false
disable_system_metrics=true
"""

PATIENCE_S = 90.0  # its worker starts again and again where its handler does not load


def main(model: Path, java: str, log_config: str) -> None:
    home = Path(str(find_spec("ts").origin)).parent  # type: ignore[union-attr]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        rest, grpc, *_ = ports = _free_ports(4)
        config = Path(scratch, "config.properties")
        config.write_text(CONFIG.format(*ports))
        Path(scratch, "peer").symlink_to(model)
        command = [java, f"-Djava.io.tmpdir={scratch}", f"-Dmodel_server_home={home.parent}"]
        command += [f"-Dlog4j.configurationFile=file://{log_config}", f"-Dcutaway.log={model}/peer.log"]
        command += ["-cp", f"{home}/frontend/*", "org.pytorch.serve.ModelServer", "--python", sys.executable]
        command += ["-f", str(config), "-s", scratch, "-ncs", "-m", "peer=peer"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            try:
                _wait_ready(server, f"http://127.0.0.1:{rest}/models/peer")
                announce({"rest": f"127.0.0.1:{rest}", "grpc": f"127.0.0.1:{grpc}"})
                server.wait()
            finally:
                server.kill()  # its workers end with it


def _wait_ready(server: subprocess.Popen[bytes], url: str) -> None:
    """Returns once a worker is ready; a ping is answered earlier."""
    until = time.monotonic() + PATIENCE_S
    while server.poll() is None and time.monotonic() < until:
        try:
            with urllib.request.urlopen(url) as reply:
                if b'"READY"' in reply.read():
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"no worker of TorchServe is ready; its status is {server.poll()}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
