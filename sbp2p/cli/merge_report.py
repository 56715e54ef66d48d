"""What `sbp2p merge` says: its methods, what it would do, and what it did."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from .text import (
    LINES_SHOWN,
    columns,
    first,
    format_bytes,
    format_count,
    format_duration,
    format_rate,
    printable,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from .console import Console
    from .merge_inputs import Located
    from .merge_job import Job, Outcome, Preview, Weighted


def show_methods(console: Console) -> int:
    """List the merge methods; those of a package that cannot be loaded by their names alone."""
    from sbp2p.merge.method import describe, names, options_of

    for name in names():
        method = describe(name)
        doc = method.doc
        options = {key: _default(value) for key, value in options_of(name).items()}
        console.event(
            "method",
            name=name,
            needs_base=method.needs_base,
            inputs_min=method.inputs_min,
            options=options,
            paper=doc.paper,
            assumes=doc.assumes,
            breakdown=doc.breakdown,
        )
        needs = ["needs --base"] if method.needs_base else []
        if method.inputs_min > 1:
            needs.append(f"{method.inputs_min} inputs or more")
        console.result(f"{name} ({', '.join(needs)})" if needs else name)
        console.result(f"  paper:     {printable(doc.paper)}")
        console.result(f"  assumes:   {printable(doc.assumes)}")
        console.result(f"  breakdown: {printable(doc.breakdown)}")
        if options:
            texts = (f"{key}={value}" if value else key for key, value in options.items())
            console.result(f"  options:   {printable(', '.join(texts))}")
    return 0


def _default(value: object) -> str:
    """Return an option's default as `--option` takes it; empty when it has none."""
    if value is None or value is inspect.Parameter.empty:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def share(weight: Fraction) -> str:
    """Return a weight as people read it: `1/8`, `0.125`, whichever is shorter."""
    exact = str(weight)
    return exact if len(exact) <= 7 else f"{float(weight):.4g}"


def preview_fields(
    job: Job, inputs: Sequence[Weighted], base: Located | None, found: Preview
) -> dict[str, Any]:
    """Return what would be done as the fields of an event."""
    return {
        "output": str(job.output),
        "method": job.method.name,
        "inputs": [
            {
                "input": each.located.text,
                "label": each.located.label,
                "cid": None if each.located.cid is None else str(each.located.cid),
                "weight": str(each.weight),
                "size": size,
            }
            for each, size in zip(inputs, found.sizes, strict=False)
        ],
        "base": None if base is None else base.text,
        "tensors": found.tensors,
        "size": found.plan.size,
        "files": [{"path": file.name, "size": file.size} for file in found.plan.files],
        "copied": list(found.extras),
    }


def preview_lines(
    job: Job, inputs: Sequence[Weighted], base: Located | None, found: Preview
) -> list[str]:
    """Return what would be done, for people."""
    total = sum(each.weight for each in inputs)
    rows = [("SIZE", "WEIGHT", "INPUT")]
    for each, size in zip(inputs, found.sizes, strict=False):
        weight = share(each.weight / total) if total else "0"
        rows.append((format_bytes(size), weight, printable(each.located.label)))
    if base is not None:
        rows.append((format_bytes(found.sizes[-1]), "base", printable(base.label)))
    files = [f"  {format_bytes(file.size)} {printable(file.name)}" for file in found.plan.files]
    shown, more = first(files, LINES_SHOWN, "file", everything=False)
    copied = [f"  copied: {printable(', '.join(found.extras))}"] if found.extras else []
    head = f"would merge by {job.method.name} into {printable(str(job.output))}: "
    head += f"{format_count(found.tensors, 'tensor')}, {format_bytes(found.plan.size)}"
    return [*columns(rows, right=frozenset({0, 1})), "", head, *shown, *more, *copied]


def merged_fields(job: Job, outcome: Outcome) -> dict[str, Any]:
    """Return a finished merge as the fields of an event."""
    report = outcome.report
    rejected = [(each.label, each.tensor, each.reason) for each in outcome.left_out]
    rejected += [(each.label, each.tensor, each.reason) for each in report.rejected]
    return {
        "output": str(outcome.output),
        "method": job.method.name,
        "tensors": report.tensors,
        "size": outcome.size,
        "bytes_read": report.bytes_read,
        "bytes_written": report.bytes_written,
        "resumed_tensors": outcome.resumed,
        "seconds": round(outcome.seconds, 6),
        "digest": outcome.digest.hex(),
        "used": [{"input": label, "weight": str(weight)} for label, weight in report.used],
        "counted": None if report.counted is None else list(map(str, report.counted)),
        "dropped": list(report.dropped),
        "kept": list(report.kept),
        "rejected": [
            {"input": label, "tensor": tensor, "reason": reason}
            for label, tensor, reason in rejected
        ],
    }


def summary(outcome: Outcome) -> list[str]:
    """Return a finished merge as lines for people."""
    report = outcome.report
    amounts = [format_bytes(outcome.size), format_count(report.tensors, "tensor")]
    lines = [
        f"merged {format_count(len(report.used), 'model')} into "
        f"{printable(str(outcome.output))}: {', '.join(amounts)}, "
        f"in {format_duration(outcome.seconds)}"
    ]
    speed = f"  read {format_bytes(report.bytes_read)}"
    if outcome.seconds > 0:
        speed += f" at {format_rate(report.bytes_read / outcome.seconds)}"
    if outcome.resumed:
        speed += f"; {format_count(outcome.resumed, 'tensor')} had been merged before"
    lines.append(speed)
    parts = report.counted or [weight for _, weight in report.used]
    lines += [
        f"  {share(part):>7}  {printable(label)}" + ("" if part else ": not chosen")
        for (label, _), part in zip(report.used, parts, strict=True)
    ]
    for each in (*outcome.left_out, *report.rejected):
        lines.append(f"  left out: {printable(each.label)}: {printable(each.reason)}")
    if report.dropped:
        lines.append(f"  {format_count(len(report.dropped), 'tensor')} not in all of them, dropped")
    if report.kept:
        lines.append(f"  {format_count(len(report.kept), 'tensor')} as in the first input")
    return [*lines, f"  digest {outcome.digest.hex()}"]
