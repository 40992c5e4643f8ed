"""Write a report: tables, figures, the page, and the compact form from which `report` can make it again."""

import base64
import json
import re
import shlex
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from jinja2 import Environment, PackageLoader

from lazybench.analysis.blocks import Block
from lazybench.analysis.labels import label, title_of
from lazybench.analysis.numbers import numbers
from lazybench.analysis.paired import compare
from lazybench.analysis.records import Run, write_compact
from lazybench.report.latex import escaped, latex
from lazybench.report.tables import READING, tables
from lazybench.store.writing import replacing

# A report replaces only a folder that holds nothing else; earlier versions wrote other files of these kinds.
_OURS = re.compile(
    r"(report|(table\d|fidelity|score_by_group|paired|intervals|notes|times|score_by_length)\w*)([-.+@]\w+)*\.(md|csv|tex|html)"
    r"|(figure\d|depth_by_length|speed_against_kl)[\w.+@-]*\.(png|pdf)|records|records\.csv|runs\.json"
)
_TEXTS = ("Task", "Method", "First", "Second")  # columns to align left


def write(out: Path, blocks: Sequence[Block]) -> list[str]:
    """Write everything into the folder `out`, replacing an earlier report; return the names of the files.

    Raises:
        LazyBenchError: `out` holds files that no report wrote, or cannot be written; it is then unchanged.
    """
    values = [numbers(block) for block in blocks]
    pairs = [compare(block) for block in blocks]
    with replacing(out, _OURS) as folder:
        write_compact([run for block in blocks for run in block.runs], pd.concat([b.records for b in blocks]), folder)
        for name, frames in (("intervals", values), ("paired", pairs)):
            owned = [_owned(block, frame) for block, frame in zip(blocks, frames, strict=True) if len(frame)]
            if owned:
                text = pd.concat(owned).to_csv(index=False, float_format="%.6g", lineterminator="\n")
                (folder / f"{name}.csv").write_text(text, "utf-8")
        common, drawn = _draw(folder, blocks, values)
        sections = []
        for block, own, compared, figures in zip(blocks, values, pairs, drawn, strict=True):
            made = tables(block, own, compared)
            for table in made:
                text = latex(
                    f"{table.name}-{block.stem}",
                    f"{re.sub('^Table [12]. ', '', table.title)}: {block.title}.",
                    table.cells,
                )
                (folder / f"{table.name}_{block.stem}.tex").write_text(text, "utf-8")
            notes = [f"{block.title}: {block.conditions}.", *block.notes()]
            (folder / f"notes_{block.stem}.tex").write_text("\n".join(map(escaped, notes)) + "\n", "utf-8")
            section = {"title": block.title, "conditions": block.conditions, "notes": block.notes(), "tables": made}
            sections.append(section | {"figures": figures, "runs": [_run(run) for run in block.runs]})
        (folder / "report.md").write_text(_markdown(sections, common), "utf-8")
        (folder / "report.html").write_text(_page(folder, sections, common), "utf-8")
        return sorted(path.name for path in folder.iterdir())


def _owned(block: Block, frame: pd.DataFrame) -> pd.DataFrame:
    """Put model, data and conditions before a frame's columns."""
    names = pd.DataFrame([[block.model, block.data, block.conditions]], columns=["model", "data", "conditions"])
    return names.merge(frame.drop(columns=["title", "line"], errors="ignore"), how="cross")


def _draw(
    folder: Path, blocks: Sequence[Block], values: Sequence[pd.DataFrame]
) -> tuple[list[dict[str, str]], list[list[dict[str, str]]]]:
    """Draw the figure of all blocks, and those of each block; return name, file and caption of both."""
    # matplotlib takes long to import.
    from lazybench.report.figures.drawings import FIGURES, line_styles, speed_against_kl
    from lazybench.report.figures.style import save, styled

    captions = yaml.safe_load(files("lazybench.report.figures").joinpath("captions.yaml").read_text("utf-8"))

    def saved(name: str, figure: Any, stem: str, of: Sequence[Block]) -> list[dict[str, str]]:
        if figure is None:
            return []
        save(figure, folder / stem)
        about = "; ".join(dict.fromkeys(f"{block.title}, {block.conditions}" for block in of))
        return [{"name": name, "file": f"{stem}.png", "caption": f"{captions[name]}. {about}."}]

    styles, drawn = line_styles(blocks), []
    with styled():
        common = saved("speed_against_kl", speed_against_kl(blocks, values, styles), "speed_against_kl", blocks)
        for block, own in zip(blocks, values, strict=True):
            figures = {draw.__name__: draw(block, own, styles) for draw in FIGURES}
            parts = [saved(name, figure, f"{name}_{block.stem}", [block]) for name, figure in figures.items()]
            drawn.append([one for part in parts for one in part])
    return common, drawn


def _markdown(sections: Sequence[dict[str, Any]], common: Sequence[dict[str, str]]) -> str:
    """Format all tables, with their notes, and the figures with their captions."""
    texts = ["# Report"]
    for section in sections:
        texts += [f"## {section['title']}", section["conditions"]]
        for table in section["tables"]:
            rows = table.cells.replace({r"\n": " ", r"\|": r"\\|"}, regex=True)
            rows.isetitem(0, rows.iloc[:, 0].mask(rows.iloc[:, 0].duplicated(), ""))
            lines = [[*rows], [":---" if name in _TEXTS else "---:" for name in rows], *rows.to_numpy().tolist()]
            texts += [f"### {table.title}", "\n".join(f"| {' | '.join(line)} |" for line in lines)]
        texts.append("\n".join(f"- {note}" for note in section["notes"]))
        texts += [f"![{figure['name']}]({figure['file']})\n\n{figure['caption']}" for figure in section["figures"]]
    texts += [f"![{figure['name']}]({figure['file']})\n\n{figure['caption']}" for figure in common]
    return "\n\n".join([*texts, "## How to read the tables", READING])


def _page(folder: Path, sections: Sequence[dict[str, Any]], common: Sequence[dict[str, str]]) -> str:
    """Render `page.html`: a page without external resources."""
    for figure in [*common, *(figure for section in sections for figure in section["figures"])]:
        figure["data"] = base64.b64encode((folder / figure["file"]).read_bytes()).decode()
    template = Environment(loader=PackageLoader("lazybench.report", ""), autoescape=True).get_template("page.html")
    reading = [line.removeprefix("- ") for line in READING.splitlines()]
    return template.render(sections=sections, common=common, reading=reading) + "\n"


def _run(run: Run) -> dict[str, str]:
    words = run.environment.get("command")
    environment = {key: value for key, value in run.environment.items() if key != "command"}
    return {
        "label": label(run),
        "facts": f"{title_of(str(run.settings['task']), 'task')}, {sum(run.settings['records_of'].values()):,} records",
        "command": shlex.join(["python", "-m", "lazybench", *words]) if words else "",
        "settings": yaml.safe_dump(run.settings, sort_keys=False, allow_unicode=True),
        "environment": json.dumps(environment, indent=2),
    }
