"""Write the gRPC stubs from service.proto, or check that the committed ones are up to date (`--check`)."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent / "proto"
PACKAGE = ROOT / "thinwire_proto" / "wire"
STUBS = ("service_pb2.py", "service_pb2.pyi", "service_pb2_grpc.py", "service_pb2_grpc.pyi")


def generate(out: Path) -> None:
    arguments = [f"--{kind}_out={out}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")]
    # with full paths, because the virtual environment may not be on PATH
    folder = Path(sys.executable).parent
    arguments += [f"--plugin={name}={folder / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")]
    status = protoc.main(["protoc", f"-I{ROOT}", *arguments, str(PACKAGE / "service.proto")])
    if status != 0:
        raise SystemExit(status)


def main() -> None:
    if sys.argv[1:] != ["--check"]:
        generate(ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh = Path(folder) / PACKAGE.relative_to(ROOT)
        stale = [name for name in STUBS if (PACKAGE / name).read_bytes() != (fresh / name).read_bytes()]
    if stale:
        raise SystemExit(f"stale: {', '.join(stale)}; service.proto has changed; run `make proto` and commit")
    print("generated code is up to date")


if __name__ == "__main__":
    main()
