"""The certificates of one run: the keeper and its replicas trust each other's, and nothing else."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cutaway.worker_protocol.socket_directory import ScratchDirectory

_CLOCKS_DIFFER = datetime.timedelta(days=1)
_LIFE = datetime.timedelta(days=3650)
"""Longer than any run: the key, which only the processes of a run have, goes with them."""


class Identity(NamedTuple):
    """A private key and its certificate, PEM."""

    key: bytes
    certificate: bytes


def new_identity() -> Identity:
    """Returns a new key with a certificate that it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "cutaway")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _LIFE)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    unencrypted = serialization.NoEncryption()
    return Identity(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, unencrypted), certificate.public_bytes(pem)
    )


def tls(own: Identity, trusted: bytes, *, server: bool) -> ssl.SSLContext:
    """Returns the TLS of one side; the other side must have the certificate ``trusted``, so its host name says no
    more."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=trusted.decode())
    with ScratchDirectory() as directory:  # Python reads keys from files only
        path = Path(directory) / "identity.pem"
        path.write_bytes(own.key + own.certificate)
        context.load_cert_chain(path)
    return context
