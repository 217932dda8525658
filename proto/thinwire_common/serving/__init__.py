"""The parts of a gRPC server that coordinators and nodes share."""
