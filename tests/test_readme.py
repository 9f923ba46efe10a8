"""What the README says of the results and of the cost is what the records give."""

import pathlib
import re
import statistics

from examples.study import report

README = (pathlib.Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_tables_are_what_the_records_give():
    assert report.main(["--check"]) == 0


def test_the_sentence_on_the_results_is_what_the_study_found():
    (told,) = re.findall(r"\*\*What to expect:\*\*(.*?)\n- ", README, flags=re.DOTALL)
    study = report.Report(report.RECORDS).study
    pairs = study.group("pairs")
    ahead = [pair for pair in pairs if pair.verdict == f"{pair.variant} ahead"]
    assert (len(ahead), len(pairs)) == (2, 4) and "two of the four variants" in told
    assert {f"{100 * statistics.mean(pair.differences):.1f}" for pair in ahead} == set(
        re.findall(r"by (\S+) points", told)
    )
    assert study.tuned().verdict == "tie" and "AdamNorm and Adam could not be told apart" in told
