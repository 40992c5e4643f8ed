"""Records, and the configs of their datasets.

`choose` finds the datasets of a task, `load_dataset_configs` how they are prompted and scored, and `load_records` their
records.
"""

from lazybench.data.dataset_configs import DatasetConfig, load_dataset_configs
from lazybench.data.load import choose, data_label, half_of, in_turn, load_records
from lazybench.data.record import Record

__all__ = [
    "DatasetConfig",
    "Record",
    "choose",
    "data_label",
    "half_of",
    "in_turn",
    "load_dataset_configs",
    "load_records",
]
