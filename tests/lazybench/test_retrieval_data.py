"""Generated retrieval records: one fact among others, at all depths."""

import yaml

from lazybench.config import CONF, DataConfig
from lazybench.data import load_dataset_configs, load_records
from lazybench.data.record import fingerprint
from lazybench.data.retrieval import COUNT, PROPERTIES

CONFIG = yaml.safe_load((CONF / "data/retrieval.yaml").read_text("utf-8"))
(NAME,) = CONFIG["datasets"]
DIGEST = "bd9f2f2351c9ef678a16c8f3db5d8c29ff09ed3a992d03c8d5e6b90f72804906"


def load(**changes):
    return load_records(NAME, DataConfig(**CONFIG | changes), None)


def test_a_record_has_one_answer_at_its_own_depth():
    records = load()
    assert len(records) == load_dataset_configs(CONFIG["datasets"])[NAME].records == COUNT
    assert load(limit=7) == records[:7]
    assert fingerprint(records) == DIGEST  # of any processor, and whatever the order of hashes
    assert len({record.context for record in load(seed=1)} | {record.context for record in records}) == 2 * COUNT
    depths = [record.context.index(record.answer_prefix) / len(record.context) for record in records]
    for some in (depths, depths[:20]):  # evenly spread, in the first records, too
        assert all(abs(depth - rank / (len(some) - 1)) < 0.06 for rank, depth in enumerate(sorted(some)))
    for record in records:
        (answer,) = record.answers
        assert record.context.count(f"{record.answer_prefix} {answer}.") == record.context.count(answer) == 1
        assert sum(record.context.count(f"The {name} of ") for name in PROPERTIES) == len(PROPERTIES)
        assert 0.97 < len(record.context) / len(records[0].context) < 1.03
