"""Code that the coordinator and the node share and that is not part of the protocol: logs, files, counters, HTTP."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# gRPC's core reads it at import. It logs a line to stderr for each malformed header that any stranger sends.
