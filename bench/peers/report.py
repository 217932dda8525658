from pathlib import Path
from bench.peers.figures import Outcome
def write_page(outcomes: list[Outcome], path: Path) -> None:
    path.write_text("x")
