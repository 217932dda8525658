"""Whether this port of this container answers 200: `healthy.py PORT [PATH]`, for images without curl.

    healthy.py PORT PATH CERTIFICATE NAME     over HTTPS, if the server's certificate is this or of this authority

PATH is /livez by default: a coordinator that replays its ledger is alive, and must not be restarted.

Says what the answer was, so that `docker inspect` shows it, and exits with 1 if it was another.
"""

import http.client
import socket
import ssl
import sys

TIMEOUT_S = 5


class Named(http.client.HTTPSConnection):
    """To this machine, which has another name in its certificate."""

    def __init__(self, port: int, certificate: str, name: str) -> None:
        self.context = ssl.create_default_context(cafile=certificate)
        self.name = name
        super().__init__("127.0.0.1", port, timeout=TIMEOUT_S, context=self.context)

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), TIMEOUT_S)
        self.sock = self.context.wrap_socket(plain, server_hostname=self.name)


def main() -> None:
    port, path, *tls = int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "/livez", *sys.argv[3:]
    try:
        connection = Named(port, *tls) if tls else http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        print(answer.status, answer.read(1000).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise SystemExit(f"no answer: {error}") from None
    if answer.status != 200:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
