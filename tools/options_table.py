"""Write the tables of options into docs/operating.md, or check that they are up to date (`--check`)."""

from __future__ import annotations

from thinwire_common.options import Options, default_of, flag, metavar_of, variable
from thinwire_coordinator.cli.options import ServeOptions, StatusOptions
from thinwire_node.cli.options import StartOptions
from thinwire_planner.cli.run import PlanOptions
from tools.generated import with_parts, write_or_check

MODULE = "tools.options_table"
TABLES: tuple[tuple[str, type[Options], tuple[str, ...]], ...] = (
    ("thinwire-coordinator", ServeOptions, tuple(ServeOptions.model_fields)),
    ("thinwire-coordinator status", StatusOptions, ("coordinator",)),
    ("thinwire-node", StartOptions, tuple(StartOptions.model_fields)),
    ("thinwire plan", PlanOptions, tuple(PlanOptions.model_fields)),
)


def tables() -> str:
    return "\n".join(_table(*table) for table in TABLES)


def _table(title: str, options: type[Options], names: tuple[str, ...]) -> str:
    has_variables = bool(options.PREFIX)
    heads = [f"`{title}`", *(["variable"] if has_variables else []), "default", "description"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in names:
        field = options.model_fields[name]
        metavar, usage = metavar_of(field), flag(options, name)
        usage = usage if usage == metavar else f"{usage} {metavar}".strip()
        named = variable(options, name)
        cells = [f"`{usage}`".replace("|", "\\|"), *([f"`{named}`" if named else ""] if has_variables else [])]
        lines.append(f"| {' | '.join([*cells, default_of(field), str(field.description)])} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    write_or_check("operating.md", with_parts("operating.md", MODULE, {"options": tables()}), MODULE)
