"""`make release`: builds what a release consists of, and checks it, in DIST.

    thinwire-VERSION.tar.gz, thinwire-VERSION-py3-none-any.whl    the second is built from the first
    thinwire-VERSION.cdx.json                                     the SBOM (CycloneDX) of an environment with the wheel
    the image thinwire:VERSION                                    in the engine, if one is at hand
    SHA256SUMS                                                    of these files

Before the checksums are written, the wheel alone runs a coordinator and two nodes, outside the repository.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.local_swarm.processes import SwarmError
from deploy.release.artifacts import BuildError, Environment, build_image, build_packages, write_sbom, write_sums
from deploy.release.trial import try_swarm


def main() -> None:
    arguments = _arguments()
    out: Path = arguments.out.resolve()
    try:
        with tempfile.TemporaryDirectory(prefix="thinwire-release-") as scratch:
            release(out, Path(scratch), borrow=arguments.borrow, image=not arguments.no_image)
    except (BuildError, SwarmError) as error:
        sys.exit(f"no release: {error}")


def release(out: Path, scratch: Path, *, borrow: bool, image: bool) -> None:
    """Build and check a release. out: a folder that it replaces. scratch: an empty folder outside the repository.

    Raises BuildError or SwarmError; `out` then has no SHA256SUMS."""
    shutil.rmtree(out, ignore_errors=True)
    packages = build_packages(out)
    print(f"built {packages.sdist.name} and, from it, {packages.wheel.name}", flush=True)
    environment = Environment(scratch / "environment", borrow=borrow)
    environment.install(packages.wheel)
    tried = try_swarm(environment, scratch)
    print(f"the wheel alone: {tried}", flush=True)
    sbom = out / packages.wheel.name.replace("-py3-none-any.whl", ".cdx.json")
    count = write_sbom(environment, packages.version, sbom)
    print(f"{sbom.name}: {count} components", flush=True)
    print(build_image(packages.version) if image else "no image: --no-image was given", flush=True)
    sums = write_sums(out, [packages.sdist, packages.wheel, sbom])
    print(f"{sums}: check with `sha256sum --check {sums.name}` in that folder")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("make release", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"), metavar="DIST", help="the folder (default dist)")
    parser.add_argument(
        "--borrow", action="store_true", help="use the dependencies of this environment, and install none"
    )
    parser.add_argument("--no-image", action="store_true", help="build no image")
    return parser.parse_args()


if __name__ == "__main__":
    main()
