"""A TLS client that shows what is on the wire, and certificates to connect with."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from horchestra.apiserver import tls
from horchestra.pki.ca import CertificateAuthority, Issued


@dataclass(frozen=True)
class Certificates:
    """One CA and what it signs, in a directory."""

    directory: Path
    authority: CertificateAuthority

    @classmethod
    def make(cls, directory: Path) -> Certificates:
        made = cls(directory, CertificateAuthority.load_or_create(directory / "pki"))
        made.write("server", made.authority.issue_server(["127.0.0.1", "localhost"]))
        return made

    def write(self, name: str, issued: Issued) -> tuple[Path, Path]:
        certificate, key = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(issued.certificate)
        key.write_bytes(issued.key)
        return certificate, key

    def client(self, name: str, groups: Sequence[str], days: float = 1) -> tuple[Path, Path]:
        return self.write(name, self.authority.issue_client(name, groups, days))

    @property
    def ca(self) -> Path:
        return self.directory / "pki" / "ca.pem"

    def server_context(self) -> ssl.SSLContext:
        return tls.server_context(self.directory / "server.pem", self.directory / "server.key", self.ca)

    def client_context(self, files: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if files is not None:
            context.load_cert_chain(*files)
        return context


@dataclass
class Answer:
    code: int
    headers: dict[str, list[str]]
    body: bytes = b""

    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str:
        return ", ".join(self.headers.get(name, []))


@dataclass
class Wire:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    log: list[bytes] = field(default_factory=list)

    @classmethod
    async def connect(cls, port: int, context: ssl.SSLContext) -> Wire:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="127.0.0.1", limit=2**20
        )
        return cls(reader, writer)

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def head(self) -> Answer:
        """Status line and headers."""
        raw = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 10)
        first, *lines = raw.decode("latin-1").split("\r\n")[:-2]
        headers: dict[str, list[str]] = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers.setdefault(name.lower(), []).append(value.strip())
        return Answer(int(first.split(" ")[1]), headers)

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; b"" is its end."""
        size = int(await asyncio.wait_for(self.reader.readline(), 10), 16)
        data = await self.reader.readexactly(size)
        await self.reader.readexactly(2)
        return data

    async def answer(self) -> Answer:
        found = await self.head()
        if found.header("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                found.body += chunk
        elif found.code not in (204, 304) and "content-length" in found.headers:
            found.body = await asyncio.wait_for(self.reader.readexactly(int(found.header("content-length"))), 10)
        return found

    async def ask(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **headers: str
    ) -> Answer:
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        self.request(method, path, data, content_type if body is not None else "", **headers)
        return await self.answer()

    def request(self, method: str, path: str, data: bytes = b"", content_type: str = "", **headers: str) -> None:
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        if content_type:
            lines.append(f"Content-Type: {content_type}")
        if data or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(data)}")
        self.send("\r\n".join(lines).encode() + b"\r\n\r\n" + data)

    async def line(self) -> Any:
        """The next event of a watch: chunks may hold several."""
        while not self.log:
            text = b""
            while not text.endswith(b"\n"):
                chunk = await self.chunk()
                if not chunk:
                    return None
                text += chunk
            self.log = text.splitlines()
        return json.loads(self.log.pop(0))
