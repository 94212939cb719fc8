"""The command line: one file a command, tables for people, `--json` for programs."""

import sys

_EXTRA = ("rich", "typer")
_INTERRUPTED = 130


def main() -> None:
    """Run a command; without the packages of the extra, say how to get them."""
    try:
        _run()
    except KeyboardInterrupt:  # while modules are loaded, before a command handles it
        sys.exit(_INTERRUPTED)


def _run() -> None:
    try:
        from seriatim.cli.app import app  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write("the command line needs its extra: pip install 'seriatim[cli]'\n")
        sys.exit(2)
    app()
