"""Whether this port of this container answers 200: `healthy.py PORT [PATH]`, for images without curl.

PATH is /livez by default: a coordinator that replays its ledger is alive, and must not be restarted.

Says what the answer was, so that `docker inspect` shows it, and exits with 1 if it was another.
"""

import http.client
import sys


def main() -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]), timeout=5)
    try:
        connection.request("GET", sys.argv[2] if len(sys.argv) > 2 else "/livez")
        answer = connection.getresponse()
        print(answer.status, answer.read(1000).decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        raise SystemExit(f"no answer: {error}") from None
    if answer.status != 200:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
