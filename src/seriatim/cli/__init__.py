"""The command-line program `seriatim`.

Each command has a module of its own. Commands print tables and lines for people, and JSON with
`--json`.
"""

import sys

_EXTRA_PACKAGES = ("rich", "typer")
_INTERRUPTED = 130


def main() -> None:
    """Run the program; exit with an installation hint if the extra `cli` is missing."""
    try:
        _run()
    except KeyboardInterrupt:  # during imports, before a command installs its own handling
        sys.exit(_INTERRUPTED)


def _run() -> None:
    try:
        from seriatim.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA_PACKAGES:
            raise
        sys.stderr.write("the command line needs an extra: pip install 'seriatim[cli]'\n")
        sys.exit(2)
    app()
