"""The sbatch file starts one node on two hosts, with programs in the place of Slurm's that run both on this one."""

from __future__ import annotations

import os
import random
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from deploy.local_swarm.processes import BIN, Process
from support.real import RealSwarm, ended, run_text, until

FILE = Path(__file__).parents[3] / "deploy" / "slurm" / "thinwire-node.sbatch"
SRUN = """#!/bin/bash
# starts the command once on each host, hands signals on to all, and ends with one that has failed
[ "$1" = --kill-on-bad-exit=1 ] || exit 64
shift
hosts=()
for ((host = 0; host < SLURM_NNODES; host++)); do SLURM_NODEID=$host "$@" & hosts+=($!); done
trap 'kill -TERM "${hosts[@]}"' TERM
status=0
for host in "${hosts[@]}"; do
    wait "$host" || status=$?
    while kill -0 "$host" 2>/dev/null; do status=0; wait "$host" || status=$?; done
done
exit "$status"
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames a,b" ] && printf 'localhost\\nlocalhost\\n'
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm's programs and variables, as a job of two hosts sees them. Ends what is left of the job, as Slurm does."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        path = tmp_path / "slurm" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    job = {"SLURM_JOB_ID": str(random.SystemRandom().randrange(1 << 30)), "SLURM_NNODES": "2"}
    for name, value in (job | {"SLURM_JOB_NODELIST": "a,b", "RANKS": "2"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STATE_DIR", str(tmp_path / "site"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{BIN}:{os.environ['PATH']}")
    yield
    for process in psutil.process_iter():
        if _variable(process, "SLURM_JOB_ID") == job["SLURM_JOB_ID"] and "thinwire_node" in process.cmdline():
            process.kill()


def submitted(swarm: RealSwarm, *more: str) -> Process:
    """The process that Slurm runs for `sbatch`."""
    return swarm.start("site", "/bin/bash", str(FILE), swarm.invitation, "--name", "site", "--device", "cpu", *more)


@pytest.mark.usefixtures("slurm")
def test_a_job_of_two_hosts_is_one_node_that_leaves_in_order_and_goes_on(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, samples=8))
    job = submitted(swarm, "--threads", "1")
    until(lambda: swarm.counted("site") >= 2, "it is counted", job)
    job.tell(signal.SIGTERM)
    ended(job)
    assert len(job.events("node.left")) == 1
    before = swarm.counted("site")
    again = submitted(swarm, "--threads", "1", "--rounds", "2")
    assert ended(again) == 0
    assert len(again.events("node.momentum_taken_up")) == 1
    assert [(one.name, one.counted) for one in swarm.status().nodes] == [("site", before + 2)]
    status = swarm.status(fingerprint=True)
    assert status.fingerprints_different == 0
    assert f"fingerprint {status.fingerprint:016x}" in swarm.verify()


@pytest.mark.usefixtures("slurm")
def test_a_process_that_dies_does_not_end_the_job(swarm: RealSwarm) -> None:
    swarm.coordinator(run_text(100_000, samples=8))
    job = submitted(swarm, "--threads", "1")
    until(lambda: swarm.counted("site") >= 2, "it is counted", job)
    followers = [one for one in psutil.Process(job.popen.pid).children(recursive=True) if _variable(one, "RANK") == "3"]
    followers[0].kill()
    until(lambda: len(job.events("node.joined")) == 2, "it begins anew", job)
    before = swarm.counted("site")
    until(lambda: swarm.counted("site") >= before + 2, "it is counted again", job)
    job.tell(signal.SIGTERM)
    ended(job)
    assert swarm.status(fingerprint=True).fingerprints_different == 0


def _variable(process: psutil.Process, name: str) -> str | None:
    with suppress(psutil.Error):
        return process.environ().get(name)
    return None


@pytest.mark.usefixtures("slurm")
def test_a_job_without_an_invite_says_how_it_is_used(swarm: RealSwarm) -> None:
    job = swarm.start("site", "/bin/bash", str(FILE))
    assert ended(job) == 1
    assert "usage: sbatch" in job.text()
