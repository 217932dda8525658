"""A real proxy that terminates TLS and passes HTTP/2 on: `python -m support.tls_proxy PORT TO-PORT PEM`."""

from __future__ import annotations

import asyncio
import ssl
import sys

from support.connect_proxy import copy

HOST = "127.0.0.1"


async def _main(port: int, to_port: int, pem: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    context.set_alpn_protocols(["h2"])

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, to_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, far_writer), copy(far_reader, writer))

    server = await asyncio.start_server(pass_on, HOST, port, ssl=context)
    print("listening", server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))
