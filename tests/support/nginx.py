"""nginx with the configuration of docs/deploy/proxy.md, in its own directory."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from tests.support.lab import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

GUIDE = Path(__file__).parents[2] / "docs" / "deploy" / "proxy.md"
HOW_TO_GET_IT = "docs/deploy/proxy.md is tested with nginx: apt-get install -y nginx"
# Temporary directories of nginx.
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Nginx:
    def __init__(self, directory: Path, service: str, names: Sequence[str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = free.getsockname()
        listen = "{}:{}".format(*self.address)
        self.url = f"https://{listen}"
        self._directory = directory
        self._log = directory / "error.log"
        self.authority = directory / "helixq.crt"
        _certify(self.authority, names)
        (directory / "nginx.conf").write_text(
            _filled_in(directory, listen=listen, service=service), encoding="utf-8"
        )

    def __enter__(self) -> Self:
        command = [_program(), "-p", self._directory, "-c", "nginx.conf", "-e", self._log]
        self._process = subprocess.Popen([*command, "-g", "daemon off;"], stdin=subprocess.DEVNULL)
        try:
            wait_until(self._answers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"nginx ended:\n{self.errors}")
        with socket.socket() as client:
            return client.connect_ex(self.address) == 0

    @property
    def requests(self) -> list[list[str]]:
        """The lines of the access log, split into words."""
        log = self._directory / "access.log"
        return [line.split() for line in log.read_text(encoding="utf-8").splitlines()]

    @property
    def errors(self) -> str:
        return self._log.read_text(encoding="utf-8")


def configuration() -> str:
    """The configuration in the document."""
    [text] = re.findall(r"```nginx\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return text


def _filled_in(directory: Path, *, listen: str, service: str) -> str:
    """The configuration with the paths and addresses of this test."""
    text = configuration()
    temporary = "".join(f" {name}_temp_path {directory}/{name}_temp;" for name in TEMPORARY)
    for theirs, ours in {
        "/run/nginx.pid": f"{directory}/nginx.pid",
        "/var/log/nginx": str(directory),
        "/etc/nginx": str(directory),
        "listen 443": f"listen {listen}",
        "127.0.0.1:8080": service,
        "http {": f"http {{{temporary}",
        "error.log;": "error.log warn;",  # warns when a body is written to disk
    }.items():
        assert theirs in text, f"{GUIDE.name} no longer contains {theirs}"
        text = text.replace(theirs, ours)
    return text


def _certify(place: Path, names: Sequence[str]) -> None:
    """Create a self-signed certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    now, a_day = datetime.now(UTC), timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - a_day)
        .not_valid_after(now + a_day)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName(list(map(_alternative, names))), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    place.with_suffix(".crt").write_bytes(certificate.public_bytes(Encoding.PEM))
    place.with_suffix(".key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _program() -> str:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
    if found is None:
        # CI must not pass without testing the document.
        if os.environ.get("CI") == "true":
            pytest.fail(HOW_TO_GET_IT)
        pytest.skip(HOW_TO_GET_IT)
    return found
