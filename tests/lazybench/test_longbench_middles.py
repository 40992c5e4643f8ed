"""The middles of LongBench's contexts: what no truncation to 3,500 tokens has let through."""

import json

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from support import folders, rows

from lazybench.analysis.records import read_records
from lazybench.config import CONF, DataConfig
from lazybench.data import load_records
from lazybench.data.longbench_middles import COUNT, DROPPED, LENGTH

CONFIG = yaml.safe_load((CONF / "data/longbench_middles.yaml").read_text("utf-8"))
LENGTHS = st.lists(st.integers(0, DROPPED * 12), min_size=1, max_size=4)


@settings(max_examples=5, deadline=None)
@given(st.fixed_dictionaries({like["like"]: LENGTHS for like in CONFIG["datasets"].values()}))
def test_pieces_are_disjoint_middles_spread_evenly_over_datasets_and_records(tmp_path_factory, lengths):
    root, contexts, available = tmp_path_factory.mktemp("records"), {}, {}
    for like, of_records in lengths.items():
        lines = []
        for number, length in enumerate(of_records):
            # Numbered words, so that each piece is in one place.
            contexts[like, str(number)] = context = "".join(f"{n:06} " for n in range(length // 7 + 1))[:length]
            lines.append({"context": context, "input": f"Why {number}?", "answers": [like]})
        (root / f"{like}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        available[like] = sum(max(0, length - 2 * DROPPED) // LENGTH for length in of_records)
    config, taken = DataConfig(**CONFIG | {"root": str(root)}), {}
    for name, like in ((name, dataset["like"]) for name, dataset in CONFIG["datasets"].items()):
        records = load_records(name, config, None) if available[like] else []
        taken[like] = len(records)
        places = set()
        for record in records:
            number, piece = record.id.split("-")
            start = contexts[like, number].index(record.context)
            assert start == DROPPED + (int(piece) - 1) * LENGTH
            assert len(contexts[like, number]) - start - LENGTH >= DROPPED
            assert (len(record.context), record.input, record.answers) == (LENGTH, f"Why {number}?", ())
            places.add((number, piece))
        assert len(places) == len(records)
    assert sum(taken.values()) == min(COUNT, sum(available.values()))
    for like, count in taken.items():  # a dataset with fewer pieces than another has no more
        assert count == available[like] or count >= max(taken.values()) - 1


def test_an_answer_to_a_piece_has_no_score(run, report, lazybench, tmp_path):
    line = json.dumps({"context": "words " * 6000, "input": "Why?", "answers": ["so"]}) + "\n"
    for dataset in CONFIG["datasets"].values():
        (tmp_path / f"{dataset['like']}.jsonl").write_text(line)
    words = ("data=longbench_middles", f"data.root={tmp_path}", "task=lcc_middle", "trace=true", "timing.per_dataset=0")
    code, _, err = run("method=lazyllm", *words)
    assert code == 0, err
    (row,) = rows(folders(tmp_path / "runs")[0])
    assert (row["score"], row["unmodified_score"], row["answers"]) == (None, None, [])
    assert row["prediction"]
    records = report() / "records.csv"
    assert read_records(records)["answers"].tolist() == [""]
    code, _, err = lazybench("score", str(records))
    assert (code, "there is no prediction in it" in err) == (2, True)
