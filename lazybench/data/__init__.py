"""Where records come from, and what is known of their datasets.

`load_records` reads a dataset's records, `load_facts` says how they are prompted and scored, `choose` which datasets a
task stands for. Names of tasks and datasets are in `lazybench.data.facts`.
"""

from lazybench.data.facts import DatasetFacts, load_facts
from lazybench.data.load import choose, data_label, half_of, load_records
from lazybench.data.record import Record, fingerprint

__all__ = ["DatasetFacts", "Record", "choose", "data_label", "fingerprint", "half_of", "load_facts", "load_records"]
