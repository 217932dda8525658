"""A node that offers a hundred contributions in each round, eight at a time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc

from abuse.target import Joined, Target
from thinwire_proto.wire import service_pb2 as pb

CONTRIBUTIONS = 100
AT_A_TIME = 8
PAYLOAD_BYTES = 1000


def many_contributions(target: Target) -> None:
    with suppress(grpc.RpcError), target.member() as member, ThreadPoolExecutor(AT_A_TIME) as pool:
        for announcement in member.rounds():
            for _ in range(CONTRIBUTIONS):
                pool.submit(_offer, target, member, announcement)
            if target.stop.is_set():
                pool.shutdown(cancel_futures=True)
                return


def _offer(target: Target, member: Joined, announcement: pb.Announcement) -> None:
    part = member.part(announcement, bytes(PAYLOAD_BYTES))
    try:
        receipt = member.stub.Contribute(iter([part]), timeout=30)
        target.count(f"not counted: {pb.Receipt.Reason.Name(receipt.reason).lower()}")
    except grpc.RpcError as error:
        target.count(f"refused: {error.code().name.lower()}")
