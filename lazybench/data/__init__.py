"""Records, and the facts of their datasets.

`choose` finds the datasets of a task, `load_facts` how they are prompted and scored, `load_records` their records.
"""

from lazybench.data.facts import DatasetFacts, load_facts
from lazybench.data.load import choose, data_label, half_of, load_records
from lazybench.data.record import Record, fingerprint

__all__ = ["DatasetFacts", "Record", "choose", "data_label", "fingerprint", "half_of", "load_facts", "load_records"]
