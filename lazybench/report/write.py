"""Write a report: tables, figures, the page, and the compact form from which `report` can make it again."""

import base64
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader, select_autoescape

from lazybench.analysis.blocks import Block
from lazybench.analysis.equal_time import equal_time
from lazybench.analysis.numbers import numbers
from lazybench.analysis.paired import compare
from lazybench.analysis.records import write_compact
from lazybench.report.claims import claims
from lazybench.report.latex import escaped, latex
from lazybench.report.tables import READING, tables
from lazybench.store.writing import replacing

# A report replaces only a folder that holds nothing else; earlier versions wrote other files of these kinds.
_KINDS = r"report|claims|equal_time|table\d|others|fidelity|score_by|paired|intervals|notes|times|figure\d|depth_by"
_KINDS += "|speed_against"
_OURS = re.compile(rf"({_KINDS})[\w.+@-]*\.(md|csv|tex|html|png|pdf)|records|records\.csv|runs\.json")


def write(out: Path, blocks: Sequence[Block]) -> list[str]:
    """Write everything into the folder `out`, replacing an earlier report; return the names of the files.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it is then unchanged.
    """
    values = [numbers(block) for block in blocks]
    pairs, times = ([make(block) for block in blocks] for make in (compare, equal_time))
    verdicts = claims(blocks)
    with replacing(out, _OURS) as folder:
        write_compact([run for block in blocks for run in block.runs], pd.concat([b.records for b in blocks]), folder)
        _write_csv(folder / "intervals.csv", blocks, values)
        _write_csv(folder / "paired.csv", blocks, pairs)
        _write_csv(folder / "equal_time.csv", blocks, times)
        if verdicts is not None:
            verdicts.to_csv(folder / "claims.csv", index=False, lineterminator="\n")
        common, drawn = _draw(folder, blocks, values)
        sections = []
        floats: dict[str, list[str]] = {}  # LaTeX of all blocks by the file's name
        for block, figures, *numbered in zip(blocks, drawn, values, pairs, times, strict=True):
            section = {"block": block, "notes": block.notes(), "tables": tables(block, *numbered)}
            for table in section["tables"]:
                caption = f"{re.sub('^Table [12]. ', '', table.title)}: {block.title}."
                text = latex(f"{table.name}-{block.stem}", caption, table.cells)
                floats.setdefault(table.name, []).append(text)
            notes = [f"{block.title}: {block.conditions}.", *section["notes"]]
            floats.setdefault("notes", []).append("\n".join(map(escaped, notes)) + "\n")
            sections.append(section | {"figures": figures, "commands": _commands(block)})
        for name, parts in floats.items():
            (folder / f"{name}.tex").write_text("\n".join(parts), "utf-8")
        pages = Environment(loader=PackageLoader("lazybench.report", ""), autoescape=select_autoescape(["html"]))
        for template, name in (("report.md.jinja", "report.md"), ("page.html", "report.html")):
            shown = {"claims": verdicts, "common": common, "sections": sections, "reading": READING}
            text = pages.get_template(template).render(shown)
            (folder / name).write_text(text + "\n", "utf-8")
        return sorted(path.name for path in folder.iterdir())


def _write_csv(path: Path, blocks: Sequence[Block], frames: Sequence[pd.DataFrame]) -> None:
    """Write the frames of all blocks below each other, if any has lines."""
    names = [{"model": block.model, "data": block.data, "conditions": block.conditions} for block in blocks]
    parts = [
        pd.DataFrame([own]).merge(frame, how="cross") for own, frame in zip(names, frames, strict=True) if len(frame)
    ]
    if parts:
        text = pd.concat(parts).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        path.write_text(text, "utf-8")


def _commands(block: Block) -> dict[str, str]:
    """Return by label of the row the command that repeats or resumes its first run, for runs that state it."""
    words = {row.label: row.runs[0].environment.get("command") for row in block.rows}
    return {label: shlex.join(["python", "-m", "lazybench", *own]) for label, own in words.items() if own}


def _draw(
    folder: Path, blocks: Sequence[Block], values: Sequence[pd.DataFrame]
) -> tuple[list[dict[str, str]], list[list[dict[str, str]]]]:
    """Draw the figure of all blocks, and those of each block; return name, file, caption and content of both."""
    # matplotlib takes long to import.
    from lazybench.report.figures.drawings import FIGURES, speed_against_kl
    from lazybench.report.figures.style import method_styles, save, styled

    captions = yaml.safe_load(files("lazybench.report.figures").joinpath("captions.yaml").read_text("utf-8"))

    def saved(name: str, made: Any, stem: str, *about: str) -> list[dict[str, str]]:
        if made is None:
            return []
        figure, counts = made
        png, _ = save(figure, folder / stem)
        data = base64.b64encode(png.read_bytes()).decode()
        caption = "".join(f"{text}. " for text in (captions[name].format(n=counts), *about)).strip()
        return [{"name": name, "file": png.name, "caption": caption, "width": figure.get_figwidth(), "data": data}]

    styles, drawn = method_styles(row.method for block in blocks for row in block.rows), []
    with styled():
        common = saved("speed_against_kl", speed_against_kl(blocks, values, styles), "speed_against_kl")
        for block, own in zip(blocks, values, strict=True):
            figures = {draw.__name__: draw(block, own, styles) for draw in FIGURES}
            about = f"{block.title}, {block.conditions}"
            parts = [saved(name, figure, f"{name}_{block.stem}", about) for name, figure in figures.items()]
            drawn.append([one for part in parts for one in part])
    return common, drawn
