"""Keys and certificates of a federation: its own certificate authority, and keys that never leave their owner."""

import hashlib
import ipaddress
import os
import stat
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256, SHA384
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rrcluster.errors import ConfigError, RunFolderError
from rrcluster.storage import explain_write, replace_file, write_file

CA_DAYS, SERVER_DAYS = 3650, 365
_NODE_MINUTES = 5  # of a connection's certificate, from and to now: clocks may differ by as much
_PEM, _RAW = serialization.Encoding.PEM, serialization.NoEncryption()


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read; an existing file is never overwritten."""
    if path.exists():
        raise RunFolderError(f"{path} exists already, and keys are never overwritten; choose another folder.")
    with explain_write(path):
        replace_file(path, content, mode=0o600)


def check_secret(path: Path) -> None:
    """Refuse a key that others may read."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        raise RunFolderError(
            f"{path}: cannot be read ({error.strerror}); enrol first, or restore it from a copy."
        ) from None
    if mode & 0o077:
        raise RunFolderError(f"{path} may be read by others (mode {mode:o}); run `chmod 600 {path}`.")


def new_identity() -> bytes:
    """A fresh Ed25519 key as a PEM file."""
    return Ed25519PrivateKey.generate().private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _RAW)


def read_identity(path: Path) -> Ed25519PrivateKey:
    """The member's identity key."""
    check_secret(path)
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise RunFolderError(f"{path}: is not an identity key; restore it from a copy, or enrol again.")
    return key


def new_node_key() -> tuple[bytes, str]:
    """A fresh key pair of a network node (ECDSA on P-384), private and public, in OpenSSH format."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(_PEM, serialization.PrivateFormat.OpenSSH, _RAW)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public.decode()


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key."""
    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("curve")
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{path}: is no node's key; give the file that enrolling made.") from None
    return key


def make_authority(public: Path, private: Path, *, name: str, hosts: Sequence[str]) -> None:
    """Create the federation's certificate authority, and its server's certificate for these host names."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"rrcluster federation {name}")
    certificate = (
        _builder(subject, subject, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, SHA256())
    )
    write_secret(private / "ca.key", _private(key))
    write_file(public / "ca.pem", certificate.public_bytes(_PEM))
    issue_server(public, private, hosts=hosts)


def authority_of(path: Path) -> str:
    """The authority's certificate in PEM, by which an agreement identifies it."""
    return _certificate(path).public_bytes(_PEM).decode()


def issue_server(public: Path, private: Path, *, hosts: Sequence[str]) -> None:
    """Issue the server's certificate, signed by the federation's authority, replacing an earlier one."""
    check_secret(private / "ca.key")
    authority = x509.load_pem_x509_certificate((public / "ca.pem").read_bytes())
    authority_key = serialization.load_pem_private_key((private / "ca.key").read_bytes(), password=None)
    assert isinstance(authority_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_named(hosts[0]), authority.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .sign(authority_key, SHA256())
    )
    with explain_write(private / "server.key"):
        replace_file(private / "server.key", _private(key), mode=0o600)
    write_file(private / "server.pem", certificate.public_bytes(_PEM))


def node_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A key of minutes and its certificate, which a node's key signs: who holds that key connects, and nobody else."""
    passing = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(_named("node"), _named(_key_name(key.public_key())), passing.public_key(), _NODE_MINUTES / 1440)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(key, SHA384())
    )
    return _private(passing) + certificate.public_bytes(_PEM)


def read_public_key(key: str) -> ec.EllipticCurvePublicKey:
    """A node's public key, from a line as OpenSSH writes it."""
    try:
        public = serialization.load_ssh_public_key(key.encode())
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise ValueError("curve")
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(f"{key[:40]!r} is no public key of a node; its member must enrol again.") from None
    return public


def node_authority(key: str) -> tuple[str, str]:
    """The name under which a node's key signs, and a certificate of that key for those who trust it."""
    public = read_public_key(key)
    name = _key_name(public)
    certificate = (
        _builder(_named(name), _named("roster"), public, SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(ec.generate_private_key(ec.SECP256R1()), SHA256())  # nobody reads this signature
    )
    return name, certificate.public_bytes(_PEM).decode()


def _key_name(key: ec.EllipticCurvePublicKey) -> str:
    return hashlib.sha256(key.public_bytes(_PEM, serialization.PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def certificate_days(path: Path, *, now: datetime | None = None) -> float:
    """Days until a certificate ends; ConfigError for one that is not yet valid, usually because of a wrong clock."""
    certificate = _certificate(path)
    at = now or datetime.now(UTC)
    if certificate.not_valid_before_utc > at:
        raise ConfigError(f"{path}: is not valid yet by the clock of this machine; set the clock.")
    return (certificate.not_valid_after_utc - at) / timedelta(days=1)


def _certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError):
        raise ConfigError(f"{path}: no certificate; run `rrcluster federation init` again, or copy it anew.") from None


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, _RAW)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not host or not host.isascii() or any(mark in host for mark in "/: "):
        raise ConfigError(f"host = {host[:80]!r} must be a host name or an address, without a port.")
    return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    no = dict.fromkeys((*others, "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(True, key_cert_sign=signs_certificates, crl_sign=signs_certificates, **no)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(int.from_bytes(os.urandom(19)) >> 1)
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
