"""The command `thinwire-node certificate`: what a run has counted of this node, signed by its coordinator."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from html import escape
from pathlib import Path

from thinwire_common.files import replace_synced
from thinwire_common.units import human_count
from thinwire_node.exchange.coordinator.reach import ask_certificate
from thinwire_node.storage.enrolment import choose, read_destination
from thinwire_proto.errors import ConfigError, UsageError
from thinwire_proto.identity.contribution_certificate import ContributionCertificate, read_certificate
from thinwire_proto.identity.keys import KEY_FILE, PublicKey, open_key

BADGE = """<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" aria-label="thinwire: {text}">
<title>thinwire: {text}</title>
<rect width="{width}" height="20" rx="3" fill="#0a6b4f"/>
<path d="M3 0h58v20H3a3 3 0 0 1-3-3V3a3 3 0 0 1 3-3z" fill="#333"/>
<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"><text x="6" y="14">thinwire</text>
<text x="67" y="14">{text}</text></g></svg>
"""
DIGIT_WIDTH = 7.2
"""Pixels of a character of the badge's text, at most on average."""


def fetch(state_dir: Path, out: Path, picture: Path | None) -> str:
    """Ask for the certificate of a state directory, and write it. Returns it in words.

    picture: the file of a badge; None: no badge is made. Raises ConfigError, UsageError, or RemoteError if the
    coordinator does not answer or has counted nothing."""
    certificate = fetch_certificate(state_dir)
    _write(out, certificate.text())
    if picture is not None:
        _write(picture, badge(certificate))
    return in_words(certificate)


def fetch_certificate(state_dir: Path) -> ContributionCertificate:
    """Ask the coordinator of a state directory for the certificate, and check it. Raises as `fetch` does."""
    destination = choose(state_dir, None)
    node = open_key(state_dir / KEY_FILE).public.node_id
    certificate = asyncio.run(ask_certificate(destination.address, destination.invite, node))
    certificate.check(destination.invite.fingerprint if destination.invite else None)
    return certificate


def check(path: Path, invite: str | None) -> str:
    """Check a certificate in a file. invite: of the run whose coordinator must have signed it. Returns it in words.
    Raises ConfigError if it proves nothing, UsageError if the invite is none."""
    try:
        certificate = read_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    named = read_destination(invite).invite if invite is not None else None
    if invite is not None and named is None:
        raise UsageError("give an invite: an address names no key that the signature could be compared with")
    try:
        certificate.check(named.fingerprint if named else None)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    if named is not None:
        return f"the coordinator that the invite names has signed it: {in_words(certificate)}"
    return (
        f"the signature fits the key in the file: {in_words(certificate)}. Anybody can make such a key. Check it with "
        "an invite of the run to know that the run's coordinator has signed it"
    )


def in_words(certificate: ContributionCertificate) -> str:
    day = datetime.fromtimestamp(certificate.at, timezone.utc).date().isoformat()
    signer = PublicKey(bytes.fromhex(certificate.coordinator)).fingerprint.hex()[:16]
    return (
        f"node {certificate.node[:8]} had {certificate.counted:,} contributions counted, with "
        f"{human_count(certificate.tokens)} tokens, {share_of(certificate):.1%} of all, in the {certificate.rows:,} "
        f"rows of run {certificate.contract[:16]} up to {day}; signed by coordinator {signer}"
    )


def share_of(certificate: ContributionCertificate) -> float:
    """The node's share of the tokens that were counted in the run."""
    return certificate.tokens / certificate.run_tokens if certificate.run_tokens else 0.0


def badge(certificate: ContributionCertificate) -> str:
    """A small picture (SVG) that says how many tokens were counted."""
    text = f"{human_count(certificate.tokens)} tokens given"
    return BADGE.format(width=round(74 + DIGIT_WIDTH * len(text)), text=escape(text))


def _write(path: Path, text: str) -> None:
    try:
        replace_synced(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
