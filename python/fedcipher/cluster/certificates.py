"""Makes short-lived certificates for a federation on this machine, and the key pairs of its nodes."""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["key_pair", "server_certificate"]

_DAYS = 30


def _secret(path: Path, content: bytes) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def server_certificate(folder: Path) -> None:
    """Write ``ca.crt``, ``link.crt`` and ``link.pem`` for localhost. The authority's secret key is not kept."""
    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    name = "Fedcipher cluster on this machine"
    key_usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(authority.public_key())
    own = (
        _builder(name, name, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage, critical=True)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    issued = (
        _builder("localhost", name, server)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(own.public_bytes(serialization.Encoding.PEM))
    (folder / "link.crt").write_bytes(issued.public_bytes(serialization.Encoding.PEM))
    _secret(folder / "link.pem", _pem(server, serialization.PrivateFormat.PKCS8))


def key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Write ``NAME.key`` and ``NAME.pub``, which identify a SuperNode to a SuperLink; returns both paths."""
    key = ec.generate_private_key(ec.SECP384R1())
    secret, public = folder / f"{name}.key", folder / f"{name}.pub"
    # Flower reads this format only.
    _secret(secret, _pem(key, serialization.PrivateFormat.OpenSSH))
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    public.write_bytes(key.public_key().public_bytes(encoding, form))
    return secret, public
