"""What a reader of one block's numbers must know, beyond what holds for every table."""

from __future__ import annotations

import pandas as pd

from lazybench.report.blocks import Block
from lazybench.report.run_data import TIMES, Run


def notes(block: Block) -> list[str]:
    """One sentence each: where schedules come from, what shows nothing, and what was disturbed."""
    return [*block.notes, *_floors(block), *_disturbed(block), *_unknown(block)]


def floors(block: Block) -> frozenset[str]:
    """Datasets on which every method scores 0 on every record: they tell no method from another."""
    records = pd.concat([run.records for run in block.runs])
    best = records[records["error"] == ""].groupby("dataset")["score"].max()
    return frozenset(best[best == 0].index)


def _floors(block: Block) -> list[str]:
    found = floors(block)
    if not found:
        return []
    return [f"floor: every method scores 0 on every record of {', '.join(sorted(found))}, which show nothing"]


def _disturbed(block: Block) -> list[str]:
    """How many passes were taken again, and which rows have records that stayed disturbed."""
    of_rows = {row.label: pd.concat([run.records for run in row.runs]) for row in block.rows}
    retaken = {label: int(records["retaken"].sum()) for label, records in of_rows.items()}
    stayed = {label: int((records["disturbed"] == 1).sum()) for label, records in of_rows.items()}
    if not any(retaken.values()):
        return []
    again = ", ".join(f"{label} {count}" for label, count in retaken.items() if count)
    said = f"passes taken again, having been disturbed by other work: {sum(retaken.values())} ({again})"
    left = ", ".join(f"{label} {count}" for label, count in stayed.items() if count)
    return [f"{said}; records that stayed so: {left}" if left else f"{said}; none of their records stayed so"]


def _unknown(block: Block) -> list[str]:
    """Rows timed on a CPU whose records lack the CPU times that would tell disturbed passes."""
    rows = [row.label for row in block.rows if any(map(_lacks_cpu_times, row.runs))]
    return [f"no CPU times were recorded, so disturbed passes cannot be told: {', '.join(rows)}"] if rows else []


def _lacks_cpu_times(run: Run) -> bool:
    timed = run.records[list(TIMES)].notna().any(axis=1)
    on_cpu = run.environment.get("device_kind") == "cpu"
    return bool(on_cpu and (timed & run.records["generation_cpu_s"].isna()).any())
