"""Certificates of this machine for servers of tests and benchmarks that speak TLS."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_certificates(folder: Path) -> str:
    """Writes server.pem and server.key for 127.0.0.1, valid for a day, and returns their authority's certificate.

    An authority of its own: rustls takes no server's certificate that is an authority itself."""
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    now = datetime.now(UTC)

    def certificate(name: str) -> x509.Certificate:
        subject, issuer = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, of)]) for of in (name, "authority")
        )
        address = x509.IPAddress(IPv4Address("127.0.0.1"))
        return (
            x509.CertificateBuilder(issuer, subject, keys[name].public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=name == "authority", path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(keys["authority"], hashes.SHA256())
        )

    (folder / "server.pem").write_bytes(certificate("server").public_bytes(serialization.Encoding.PEM))
    (folder / "server.key").write_bytes(
        keys["server"].private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return certificate("authority").public_bytes(serialization.Encoding.PEM).decode()
