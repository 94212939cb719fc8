"""The command `seriatim trace show`: one decision trace in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from seriatim.cli import exit_codes
from seriatim.cli.command_session import (
    CommandSession,
    CommonOptions,
    JsonOutput,
    LogUrl,
    TenantOption,
    command_session,
)
from seriatim.cli.output import escape_unprintable, format_pairs, make_table, write_json
from seriatim.core.decision_graph import TRACE_STREAM_TYPE
from seriatim.core.errors import NotFound
from seriatim.core.trace_report import TraceReport, TreeItem, build_report, build_tree

app = typer.Typer(name="trace", help="Decision traces.", no_args_is_help=True)

_STYLES = {
    "trace": "bold cyan",
    "entity": "magenta",
    "input": "blue",
    "policy": "yellow",
    "exception": "red",
    "action": "green",
    "actor": "white",
}

TraceId = Annotated[
    str, typer.Argument(metavar="ID", help="The id of the trace.", show_default=False)
]
Limit = Annotated[
    int, typer.Option("--limit", min=1, max=10_000, help="The maximum number of events.")
]


@app.command("show", epilog=exit_codes.format_exit_codes())
def show(
    ctx: typer.Context,
    trace_id: TraceId,
    limit: Limit = 1000,
    url: LogUrl = None,
    tenant: TenantOption = None,
    as_json: JsonOutput = False,
) -> None:
    """Draw one trace: its decision graph as a tree, and its events as a timeline."""
    with (
        command_session(ctx, CommonOptions(url, tenant, as_json)) as command,
        command.open() as log,
    ):
        stream = (TRACE_STREAM_TYPE, trace_id)
        records = list(log.read_stream(stream, limit=limit))
        if not records:
            msg = f"there is no trace {trace_id!r:.80} in the tenant {log.tenant_id}"
            raise NotFound(msg, details={"trace_id": trace_id[:80]})
        report = build_report(trace_id, records)
        if command.as_json:
            write_json(report)
        else:
            _print_report(command, report)
        last = log.last_event(stream)
        if last is not None and last.position > records[-1].position:
            command.notice(f"the trace has more events: raise --limit above {limit}")


def _print_report(command: CommandSession, report: TraceReport) -> None:
    if (trace := report.summary) is not None:
        facts = {
            "trace": trace.trace_id,
            "title": trace.title,
            "workflow": trace.workflow,
            "outcome": trace.outcome or "open",
            "started": trace.started_at,
            "finished": trace.finished_at or "not yet",
        }
        command.stdout.print(format_pairs(facts))
        command.stdout.print()
    root = build_tree(report)
    tree = Tree(_format_item(report, root), guide_style="dim")
    _add_items(report, tree, root)
    command.stdout.print(tree)
    command.stdout.print()
    rows = make_table("seq", "occurred", "event", "what", "actor", right=("seq",))
    for step in report.steps:
        rows.add_row(
            str(step.seq),
            step.occurred_at,
            Text(step.event_type, style="green"),
            Text(escape_unprintable(step.text)),
            Text(escape_unprintable(step.actor)),
        )
    command.stdout.print(rows)


def _add_items(report: TraceReport, tree: Tree, item: TreeItem) -> None:
    for child in item.children:
        _add_items(report, tree.add(_format_item(report, child)), child)


def _format_item(report: TraceReport, item: TreeItem) -> Text:
    kind, _, name = item.node_id.partition(":")
    text = Text()
    if item.verbs:
        text.append(", ".join(item.verbs) + " ", style="dim")
    text.append(f"{kind} ", style=_STYLES[kind])
    text.append(escape_unprintable(name))
    if state := report.states.get(item.node_id):
        text.append(f"  {state.replace('_', ' ')}", style="bold")
    if item.repeated:
        text.append("  (see above)", style="dim")
    return text
