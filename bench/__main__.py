"""The entry point of all benchmarks: `python -m bench SUITE`, or `python -m bench report`."""

import importlib
import sys

from bench.plan import SUITES

REPORT = "report"


def usage() -> str:
    """Return the help text."""
    lines = ["usage: python -m bench COMMAND [options]", "", "commands:"]
    lines += [f"  {name:<10}measure {text}" for name, text in SUITES.items()]
    lines.append(f"  {REPORT:<10}write docs/reference/benchmarks.md from the published results")
    return "\n".join([*lines, "", "`python -m bench COMMAND --help` lists the options of a suite."])


def main(arguments: list[str]) -> int:
    """Run a command and return its exit code.

    Suites are imported on demand, because each needs other optional packages.
    """
    command, *options = arguments or ["--help"]
    if command in ("-h", "--help"):
        print(usage())
        return 0
    if command == REPORT and not options:
        importlib.import_module("bench.report_page").write()
        return 0
    if command not in SUITES:
        print(f"unknown command: {' '.join(arguments)}\n\n{usage()}", file=sys.stderr)
        return 2
    code: int = importlib.import_module(f"bench.{command}.suite").main(options)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
