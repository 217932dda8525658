"""The node's HTTP server for health and metrics.

Imported only with --metrics. A node without metrics does not listen and does not load Starlette, uvicorn and
prometheus_client."""

from __future__ import annotations

import ipaddress
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from itertools import accumulate
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from thinwire_common.http import SAFETY, HttpServer, bind
from thinwire_common.metrics import CONTENT_TYPE
from thinwire_common.reach.hosts import is_loopback
from thinwire_common.tls import ServerTls
from thinwire_node.observe.definitions import METRICS, PHASE_SECONDS, SAMPLES, WATCHING_CPU_SECONDS
from thinwire_node.observe.reporter import Reporter
from thinwire_node.report import TAKES_PART, Report
from thinwire_node.session.record import BOUNDS_S, Record
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity.private_files import publish_new

SERVER_NAME = "thinwire-node"
CERTIFICATE_FILE = "node.pem"
LASTS = timedelta(days=10 * 365)
RENEW_BEFORE = timedelta(days=365)
BACKDATED = timedelta(days=1)
_KEY_BEGINS = b"-----BEGIN PRIVATE KEY-----"


def metrics_tls(folder: Path) -> ServerTls:
    """The TLS of a node's metrics, from the certificate in a folder. Makes one if there is none. Raises ConfigError.

    It signs itself, so a scraper takes it as its own root (Prometheus: `ca_file`, with `server_name: thinwire-node`).
    All nodes that are given the same folder share one: node.key.pem has certificate and key, node.pem the certificate
    alone, for the scraper."""
    path = folder / "node.key.pem"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = _read(path) or _create(path)
        chain, mark, key = found.partition(_KEY_BEGINS)
        _write(folder / CERTIFICATE_FILE, chain, 0o644).replace(folder / CERTIFICATE_FILE)
        return ServerTls(chain, mark + key)
    except OSError as error:
        raise ConfigError(f"--metrics-tls {folder}: cannot keep a certificate: {error.strerror or error}") from None


def _read(path: Path) -> bytes | None:
    """Certificate and key; None if there are none, or they end soon."""
    try:
        data = path.read_bytes()
        ends = x509.load_pem_x509_certificate(data).not_valid_after_utc
    except (FileNotFoundError, ValueError):
        return None
    return data if datetime.now(timezone.utc) < ends - RENEW_BEFORE else None


def _create(path: Path) -> bytes:
    data = _new()
    temporary = _write(path, data, 0o600)
    try:
        if _read(path) is None:
            path.unlink(missing_ok=True)
        publish_new(temporary, path)  # fails if another node was faster, so that both use its certificate
    except FileExistsError:
        return path.read_bytes()
    return data


def _write(path: Path, data: bytes, mode: int) -> Path:
    """A new file beside `path`; nodes in different containers may have the same process id, so its name is random."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.part")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return temporary


def _new() -> bytes:
    now, key = datetime.now(timezone.utc), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, SERVER_NAME)])
    names: list[x509.GeneralName] = [x509.DNSName(SERVER_NAME), x509.DNSName("localhost")]
    names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - BACKDATED).not_valid_after(now + LASTS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM) + secret


BOUNDS = (*(f"{bound:g}" for bound in BOUNDS_S), "+Inf")


class NodeMetrics(Collector):
    """Collects the metrics of one node. `watching_s`: returns the CPU time of all observation."""

    def __init__(self, reporter: Reporter, record: Record, watching_s: Callable[[], float]) -> None:
        self._reporter = reporter
        self._record = record
        self._watching_s = watching_s
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """All metrics without samples. The registry calls this once, before there is a report."""
        return [of.family() for of in METRICS]

    def collect(self) -> Iterator[Metric]:
        report = self._reporter.report()
        for of in METRICS:
            metric = of.family()
            if isinstance(metric, HistogramMetricFamily):
                assert of is PHASE_SECONDS, "the values of another histogram are not known here"
                for phase, durations in self._record.phases.items():
                    buckets = zip(BOUNDS, map(float, accumulate(durations.counts)), strict=True)
                    metric.add_metric([phase], list(buckets), durations.sum_s)
            elif of is WATCHING_CPU_SECONDS:
                metric.add_metric([], self._watching_s())
            else:
                for labels, value in SAMPLES[of](report).items():
                    if value is not None:
                        metric.add_metric(labels, value)
            yield metric


CONNECTIONS_MAX = 16
"""A scraper needs one connection at a time."""
ADVICE = "give another port with --metrics"


class MetricsServer:
    """The HTTP server of one node. It is reachable from other machines only with `tls_folder`; see `metrics_tls`.

    port: 0 for any free port. metrics: returns the body of /metrics. report: returns the current report. Both run on
    the event loop. Raises ConfigError if the server cannot listen on the port."""

    def __init__(
        self,
        host: str,
        port: int,
        metrics: Callable[[], bytes],
        report: Callable[[], Report],
        tls_folder: Path | None = None,
    ) -> None:
        self._metrics = metrics
        self._report = report
        routes = [Route("/metrics", self._metrics_page), Route("/livez", self._livez), Route("/readyz", self._readyz)]
        if tls_folder is None and not is_loopback(host):
            raise UsageError(
                f"--metrics {host}:{port} would be open to others without encryption: use 127.0.0.1:{port}, or give "
                "--metrics-tls DIR, and the certificate from that folder to your scraper"
            )
        tls = None if tls_folder is None else metrics_tls(tls_folder)
        self._server = HttpServer(bind(host, port, ADVICE), routes, CONNECTIONS_MAX, tls)
        self.address = f"{self._server.scheme}://{host}:{self._server.port}"

    def start(self) -> None:
        self._server.start()

    async def stop(self) -> None:
        await self._server.stop()

    async def _metrics_page(self, request: Request) -> Response:
        return Response(self._metrics(), headers=SAFETY, media_type=CONTENT_TYPE)

    async def _livez(self, request: Request) -> Response:
        """200 while the event loop runs, which the response itself proves. Waiting counts as healthy."""
        return self._health(200)

    async def _readyz(self, request: Request) -> Response:
        """200 while the node takes part in rounds, 503 before and after."""
        return self._health(200 if self._report().state in TAKES_PART else 503)

    def _health(self, code: int) -> Response:
        report = self._report()
        return JSONResponse({"state": report.state, "words": report.words}, code, SAFETY)
