"""Where the configs are."""

from __future__ import annotations

from pathlib import Path

_HERE = Path(__file__).resolve().parent
# Inside an installed wheel the configs lie in the package; in a checkout they lie beside it.
CONF = next(folder for folder in (_HERE / "conf", _HERE.parent / "conf") if folder.is_dir())
