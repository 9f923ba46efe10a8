"""The tables, sentences and figures that are made of records."""

import json
import math
import re

import pytest

from examples.benchmarks import accelerator_table, step_time_tables
from examples.study import experiments, figures, markdown, paper, report, simulation
from examples.study.experiments import SCALES, TABLES
from examples.training.errors import RecordError
from tests.support import made_records
from tests.support.command_line import assert_refused

# Accuracies of five seeds, which all arms share.
LUCK = (0.50, 0.53, 0.51, 0.55, 0.52)
FIVE = (0.01, 0.02, 0.03, 0.04, 0.05)


def accuracy(one, gains):
    gain = gains.get(one.arm.name, 0.0)
    seed = one.settings.seed % 100
    return LUCK[seed % 5] + (gain[seed % 5] if isinstance(gain, tuple) else gain)


def write(folder, planned, gains=(), **made):
    """Records of the runs, `gains` above the luck of their seed by the name of their arm."""
    for one in planned:
        keep(folder, one, made_records.record(one.settings, accuracy(one, dict(gains)), **made))


def keep(folder, one, record):
    path = folder / one.path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record))


def fail(folder, one):
    keep(folder, one, {"settings": one.settings.as_dict(), "failed": "The loss is nan."})


def study(**options):
    return experiments.runs(TABLES["study"], "desk", **options)


def rows(text, title):
    """The tables under a title, as `{first cell: [other cells]}`."""
    (part,) = re.findall(rf"^### {title}[^\n]*\n(.*?)(?=^###|\Z)", text, re.DOTALL | re.MULTILINE)
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("| ")]
    return {cells[0]: cells[1:] for cells in lines}


# The study


def test_differences_are_paired_by_seed(tmp_path):
    write(tmp_path, study(), {"AdamNorm": FIVE})
    found = rows(report.Report(tmp_path).study_table(), "Pairs")
    # Of 1 to 5 points the mean is 3 and the standard error sqrt(2.5 / 5). With 4 degrees of
    # freedom t is 2.776 at 95 %, and 4.315 for four that hold together.
    error = math.sqrt(0.5)
    alone, together = (f"{3 - t * error:+.2f} to {3 + t * error:+.2f}" for t in (2.7764, 4.3147))
    difference, *ends, count, detectable, verdict = found["AdamNorm - Adam"]
    assert (difference, ends, count) == ("+3.00", [alone, together], "5")
    assert verdict == "tie"  # the widened interval holds 0, the other one does not
    # 2.48 standard deviations; tests/test_intervals.py holds that against simulated studies.
    assert float(detectable) == pytest.approx(2.48 * math.sqrt(2.5), rel=0.01)
    # All others agree to the last image, which proves nothing.
    assert found["RadamNorm - Radam"][0] == "+0.00"
    assert found["RadamNorm - Radam"][-1] == "tie"


def marked(facts):
    """Sentences that say these facts, as a README would have them."""
    return "before\n<!-- results -->\n" + " and\n".join(facts) + ".\n<!-- end -->\nafter"


@pytest.mark.parametrize(
    ("gain", "said"),
    [
        (0.0, "AdamNorm - Adam +0.00 points (-0.02 to +0.02, tie)"),
        (0.03, "AdamNorm - Adam +3.00 points (+2.98 to +3.02, AdamNorm ahead)"),
        (-0.03, "AdamNorm - Adam -3.00 points (-3.02 to -2.98, Adam ahead)"),
    ],
)
def test_facts_say_which_pairs_differ(gain, said, tmp_path):
    write(tmp_path, study(), {"AdamNorm": gain})
    facts = report.Report(tmp_path).facts()
    # All agree to the last image of 10,000: t at 98.75 %, four degrees of freedom, is 4.3147, and
    # 100 * 4.3147 * 1e-4 / sqrt(5) is 0.02.
    assert said in facts
    assert {"10,000 images of CIFAR-10", "1,000 parameters", "6 epochs", "5 seeds"} <= set(facts)


def test_facts_tell_the_floor_from_the_correction_and_have_the_power(tmp_path):
    write(tmp_path, study(), {"Adam-floor": 0.02, "AdamNorm-released": 0.03, "AdamNorm": FIVE})
    facts = " | ".join(report.Report(tmp_path).facts())
    assert re.search(r"Adam-floor - Adam \+2\.00 points \(.*?, Adam-floor ahead\)", facts)
    assert re.search(r"released - Adam-floor \+1\.00 points \(.*?, AdamNorm-released ahead", facts)
    assert re.search(r"released - Adam \+3\.00 points \(.*?, AdamNorm-released ahead\)", facts)
    assert "AdamNorm - Adam not run" in facts  # the tuned pair
    assert "7 trials" in facts
    # Of the other pairs the differences are all 0, and one image is what can be seen of them.
    assert "0.0 to 3.9 points" in facts
    assert "942 steps" in facts  # 6 epochs of 157
    tune(tmp_path)
    assert "AdamNorm - Adam +1.00 points" in " | ".join(report.Report(tmp_path).facts())


def test_sentences_are_held_against_the_records(tmp_path):
    write(tmp_path, study(), {"AdamNorm": FIVE})
    tune(tmp_path)
    made = report.Report(tmp_path)
    facts = made.facts()
    assert made.complaints(marked(facts)) == []
    assert made.complaints("no such marker") == []
    for fact in facts:
        others = [other for other in facts if other != fact]
        assert f"it lacks: {fact}" in made.complaints(marked(others))
    wrong = "AdamNorm - Adam +9.00 points (+8.00 to +10.00, AdamNorm ahead)"
    assert made.complaints(marked([*facts, wrong])) == [f"not in the records: {wrong}"]
    assert made.render(marked(facts)) == marked(facts)


def test_sentences_that_are_wrong_fail_the_check_and_are_not_rewritten(tmp_path, capsys):
    write(tmp_path, study(seeds=2))
    text = marked(["5 seeds"])
    (tmp_path / "README.md").write_text(text)
    for arguments in ([], ["--check"]):
        assert report.main(["--folder", str(tmp_path), *arguments]) == 1
        error = capsys.readouterr().err
        assert "README.md: it lacks: 2 seeds" in error and error.count("\n") == 1
        assert (tmp_path / "README.md").read_text() == text


def tune(folder):
    """Trials and final runs: Adam is best at 1e-3, AdamNorm at 1e-2, and one point ahead."""
    for name, planned in experiments.trials("desk").items():
        best = {"Adam": 1e-3, "AdamNorm": 1e-2}[name]
        for one in planned:
            validated = [0.1] * 5 + [0.6 if one.arm.learning_rate == best else 0.3]
            keep(folder, one, made_records.record(one.settings, 0.2, validation=validated))
    fail(folder, experiments.trials("desk")["Adam"][0])
    series = report.Report(folder).series
    for planned in experiments.finals("desk", series).values():
        write(folder, planned, {"AdamNorm-lr0.01": 0.01})


def test_tuned_pair(tmp_path):
    write(tmp_path, study(seeds=1))
    tune(tmp_path)
    found = rows(report.Report(tmp_path).study_table(), "Tuned")
    assert found["0.0001"] == ["failed", "30.00"]
    assert found["0.001"] == ["60.00", "30.00"]
    assert found["0.01"] == ["30.00", "60.00"]
    assert found["Adam"][:2] == ["0.001", "52.20"]
    assert found["AdamNorm"][:2] == ["0.01", "53.20"]
    difference, *_, count, _, verdict = found["AdamNorm - Adam"]
    assert (difference, count, verdict) == ("+1.00", "5", "AdamNorm ahead")


def test_a_study_that_is_not_run_says_so(tmp_path):
    nothing = report.Report(tmp_path)
    assert nothing.facts() == []
    assert nothing.study_table() == "Not run."


def test_a_study_that_has_begun_says_how_far_it_is(tmp_path):
    write(tmp_path, study(seeds=1)[:3])
    begun = report.Report(tmp_path)
    text = begun.study_table()
    assert "90 runs, 3 done, 0 failed" in text
    pairs, arms = rows(text, "Pairs"), rows(text, "Accuracy")
    assert pairs["AdamNorm - Adam"] == ["+0.00", "-", "-", "1", "-", "one seed tells nothing"]
    assert pairs["RadamNorm - Radam"] == ["-", "-", "-", "0", "-", "not run"]
    assert arms["Adam"][:3] == ["50.00", "-", "1 of 5"]
    assert arms["Radam"][:3] == ["not run", "-", "0 of 5"]
    facts = begun.facts()
    assert "AdamNorm - Adam +0.00 points (one seed tells nothing)" in facts
    assert "RadamNorm - Radam not run" in facts
    assert "Adam-floor - Adam not run" in facts
    assert not [fact for fact in facts if fact.endswith(" points")]  # too small to say


def test_a_failed_run_stays_in_the_count_and_its_pair_is_left_out(tmp_path):
    write(tmp_path, study(), {"AdamNorm": FIVE})
    fail(tmp_path, next(one for one in study(first_seed=4) if one.arm.name == "AdamNorm"))
    text = report.Report(tmp_path).study_table()
    assert "90 runs, 89 done, 1 failed" in text
    assert rows(text, "Accuracy")["AdamNorm"][2] == "4 of 5, 1 failed"
    difference, *_, count, _, _ = rows(text, "Pairs")["AdamNorm - Adam"]
    assert (difference, count) == ("+2.50", "4, 1 of AdamNorm failed")  # of 1 to 4 points


def test_seeds_that_were_added_count(tmp_path):
    write(tmp_path, study(seeds=7))
    text = report.Report(tmp_path).study_table()
    assert rows(text, "Pairs")["AdamNorm - Adam"][3] == "7"
    assert rows(text, "Noise")["Adam-other-seeds - Adam"][3] == "7"
    assert "126 runs, 126 done" in text
    tune(tmp_path)
    assert rows(report.Report(tmp_path).study_table(), "Tuned")["AdamNorm - Adam"][3] == "5"
    for planned in experiments.finals("desk", report.Report(tmp_path).series, 6).values():
        write(tmp_path, planned)
    assert rows(report.Report(tmp_path).study_table(), "Tuned")["AdamNorm - Adam"][3] == "6"


def test_accuracies_with_interval_and_corrections(tmp_path):
    write(tmp_path, study(), fired=0.256)
    found = rows(report.Report(tmp_path).study_table(), "Accuracy")
    # LUCK: mean 52.2, standard error 100 * sqrt(0.00037 / 5).
    reach = 2.7764 * 100 * math.sqrt(0.00037 / 5)
    assert found["Adam"][:4] == [
        "52.20",
        f"{52.2 - reach:.2f} to {52.2 + reach:.2f}",
        "5",
        "25.6%",
    ]


def test_epochs_to_the_target(tmp_path):
    write(tmp_path, study(seeds=3))  # rising to 0.50, 0.53, 0.51: Adam's median is 0.51
    curves = {
        0: [0.1, 0.1, 0.51, 0.1, 0.1, 0.1],
        1: [0.1, 0.1, 0.1, 0.1, 0.6, 0.1],
        2: [0.50] * 6,
    }
    for one in study(seeds=3):
        if one.arm.name == "RadamNorm":
            record = made_records.record(one.settings, validation=curves[one.settings.seed])
            keep(tmp_path, one, record)
    text = report.Report(tmp_path).study_table()
    assert "The target is 51.00 %" in text
    found = rows(text, "Accuracy")
    assert found["RadamNorm"][-1] == "5 (1 of 3 never)"
    assert found["Adam"][-1] == "6 (1 of 3 never)"


# The paper's tables


def test_values_that_stand_in_two_of_the_papers_tables_agree():
    first = paper.ACCURACIES["table1"]
    shared = 0
    for name in ("table2", "table3", "table4", "table5"):
        for cell, value in paper.ACCURACIES[name].items():
            if cell in first:
                assert first[cell] == value
                shared += 1
    assert shared == 9 + 9 + 12 + 12


def test_gains_that_the_paper_prints_follow_from_its_values():
    table = paper.ACCURACIES["table1"]
    for (dataset, model), gains in paper.RELATIVE_GAINS.items():
        for (plain, variant), gain in zip(experiments.PAIRS, gains, strict=True):
            before, after = (table[dataset, model, arm.name] for arm in (plain, variant))
            assert 100 * (after - before) / before == pytest.approx(gain, abs=0.0051)


def test_reduced_runs_are_in_no_table_of_the_paper(tmp_path):
    write(tmp_path, study())
    made = report.Report(tmp_path)
    cells = re.findall(r"\d\d\.\d\d; ([^|]*) \|", made.paper_table())
    assert len(cells) == 207
    assert set(cells) == {"not run"}
    assert not [name for name in made.figures() if name.startswith("paper")]


def test_full_size_runs_stand_beside_the_papers_values(tmp_path):
    planned = [
        one
        for one in experiments.runs(TABLES["table1"], "paper")
        if one.settings.model == "vgg16" and one.settings.dataset == "cifar10"
    ]
    write(tmp_path, planned, gpus=["a GPU"])
    made = report.Report(tmp_path)
    text = made.paper_table()
    reach = 4.3027 * 100 * math.sqrt(0.0007 / 3 / 3)  # of 50, 53, 51: variance 7 / 3
    interval = f"{51.3333 - reach:.2f} to {51.3333 + reach:.2f}"
    cell = f"51.33, {interval}, n 3 (52.33)"
    assert rows(text, "Table 1")["CIFAR-10, VGG16"][:2] == [f"92.55; {cell}", f"92.83; {cell}"]
    assert rows(text, "Table 1")["CIFAR-10, ResNet18"][0] == "93.54; not run"
    # Adam and AdamNorm stand in other tables, too.
    assert rows(text, "Table 5")["CIFAR-10, VGG16"][1] == f"92.55; {cell}"
    assert text.count("Ours on a GPU.") == 5
    assert made.study_table() == "Not run."
    figure = made.figures()["paper-figure2.png"]()
    assert [axes.get_ylabel() for axes in figure.axes] == ["test accuracy", "training loss"]


def test_hours_of_the_papers_tables():
    # Multiply-adds of an image in 10^9: VGG16 0.3132, ResNet18 0.5554, ResNet50 1.298; four times
    # that at twice the side, on twice the images. Eight arms, three seeds, 100 epochs.
    images = 50_000 + 50_000 + 4 * 100_000
    hours = 3 * (0.3132 + 0.5554 + 1.298) * 1e9 * images * 100 * 24 / 1e13 / 3600
    lines = report.Report("nothing").hours_table().splitlines()
    assert lines[2] == f"| table1 | 216 | {hours:.0f} | 216 | {hours:.0f} |"
    assert lines[-1].startswith("| figure3 | 36 | ")
    assert lines[-1].endswith(" | 0 | 0 |")


# Simulations


def simulated(folder, name, settings, results):
    path = simulation.path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"settings": settings, "results": results}))


def test_distances_of_figure_1(tmp_path):
    walk = {"position": [0.0] * 7, "update": [9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 5.0]}
    settings = {"learning_rate": 0.01, "slope_steps": 2, "steps": 3}
    simulated(tmp_path, "figure1", settings, {"S1": {"Adam": walk}})
    found = rows(report.Report(tmp_path).simulation_table(), "Figure 1")
    assert found["S1, Adam"] == ["15", "15", "6"]


def test_regret_above_its_bound_is_told(tmp_path):
    curve = {"steps": [1, 10, 100, 1000], "regret": [[4, 3, 2, 1], [4, 3.1, 2, 1]]}
    below = curve | {"bound": [9, 9, 9, 9], "printed_bound": [9, 9, 9, 9]}
    above = curve | {"bound": [9, 3.05, 1, 0.5], "printed_bound": [9, 9, 1, 9]}
    text = {}
    for name, other in (("holds", below), ("broken", above)):
        simulated(tmp_path, "regret", {}, {"cycle": {"Adam": below, "AdamNorm": other}})
        text[name] = report.Report(tmp_path).simulation_table()
    assert "No average regret is above its bound." in text["holds"]
    assert "as stated, it does not hold there" in text["broken"]
    last = [line.split(" | ")[-1].strip(" |") for line in text["broken"].splitlines()]
    assert "none" in last
    assert "supplement: 10 and all later; main text: 100 and others" in last


# Documents and figures


@pytest.fixture
def written(tmp_path):
    write(tmp_path, study(seeds=2))
    assert report.main(["--folder", str(tmp_path)]) == 0
    return tmp_path


def check(folder):
    return report.main(["--folder", str(folder), "--check"])


def test_documents_and_figures_are_written_and_pass_the_check(written):
    names = {path.name for path in (written / "figures").iterdir()}
    assert names == {"desk-figure2.png", "desk-figure3.png"}
    text = (written / "README.md").read_text()
    for name in re.findall(r"\]\(figures/desk-(.*?)\)", text):
        assert (written / "figures" / f"desk-{name}").read_bytes().startswith(b"\x89PNG")
    assert check(written) == 0


def test_check_fails_where_a_table_was_changed_by_hand(written, capsys):
    path = written / "README.md"
    changed = path.read_text().replace("| AdamNorm - Adam | +0.00", "| AdamNorm - Adam | +9.00")
    path.write_text(changed)
    assert check(written) == 1
    assert f"{path} not as the records give it" in capsys.readouterr().err
    assert path.read_text() == changed


def test_check_fails_where_a_record_has_changed(written):
    write(written, study(seeds=1), {"AdamNorm": 0.001})
    assert check(written) == 1


def test_check_fails_without_a_figure(written, capsys):
    (written / "figures" / "desk-figure3.png").unlink()
    assert check(written) == 1
    assert "desk-figure3.png" in capsys.readouterr().err
    assert not (written / "figures" / "desk-figure3.png").exists()


def test_a_damaged_record_is_named(written, capsys):
    path = written / study()[0].path
    path.write_text("half a rec")
    assert check(written) == 1
    printed = capsys.readouterr().err
    assert str(path) in printed and printed.count("\n") == 1


def test_what_stands_outside_the_markers_is_left_alone(tmp_path):
    text = "before\n<!-- study -->\nold\n<!-- end -->\nafter <!-- study -->\n"
    assert report.Report(tmp_path).render(text) == (
        "before\n<!-- study -->\nNot run.\n<!-- end -->\nafter <!-- study -->\n"
    )


def test_figures_show_every_run(tmp_path):
    write(tmp_path, study(seeds=2))
    made = report.Report(tmp_path)
    curves = made.figures()["desk-figure2.png"]()
    assert len(curves.axes) == 8  # four pairs; accuracy and loss
    assert all(len(axes.lines) == 2 for axes in curves.axes)
    assert [axes.get_ylabel() for axes in curves.axes[::4]] == [
        "validation accuracy",
        "training loss",
    ]


def test_norms_that_nobody_looked_at_are_not_drawn():
    (plain, *_) = study(seeds=1)
    seen = made_records.record(plain.settings)
    unseen = made_records.record(plain.settings)
    del unseen["epochs"]["gradient_norm"]
    columns = [
        ("one", ("Adam", [seen]), ("AdamNorm", [seen])),
        ("two", ("Radam", [unseen]), ("RadamNorm", [seen])),
    ]
    first, second = figures.gradient_norms(columns, "note").axes
    assert [line.get_label() for line in first.lines] == ["Adam", "AdamNorm", "AdamNorm, corrected"]
    assert [line.get_label() for line in second.lines] == ["RadamNorm", "RadamNorm, corrected"]


def test_scale_of_the_study_can_be_chosen(tmp_path):
    write(tmp_path, experiments.runs(TABLES["study"], "smoke"))
    text = report.Report(tmp_path, "smoke").study_table()
    assert f"{18 * SCALES['smoke'].seeds} runs, 36 done" in text


def test_another_scale_is_reported_under_its_own_name(tmp_path, capsys):
    write(tmp_path, experiments.runs(TABLES["study"], "smoke"))
    assert report.main(["--folder", str(tmp_path), "--scale", "smoke"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0] == str(tmp_path / "README.md")
    assert told[1:] == [str(tmp_path / "figures" / f"smoke-figure{n}.png") for n in (2, 3)]
    text = (tmp_path / "README.md").read_text()
    assert "figures/smoke-figure2.png" in text
    assert "desk" not in text.lower() and "1e-3" not in text
    assert report.main(["--folder", str(tmp_path), "--scale", "smoke", "--check"]) == 0
    assert "All tables and sentences are as the records" in capsys.readouterr().out


def test_no_accuracy_is_below_nothing_or_above_all(tmp_path):
    write(tmp_path, experiments.runs(TABLES["study"], "smoke", seeds=2), {"Radam": (0.0, 0.45)})
    found = rows(report.Report(tmp_path, "smoke").study_table(), "Accuracy")
    assert found["Radam"][1] == "0.00 to 100.00"


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.pop("updates"),
        lambda record: record.pop("device"),
        lambda record: record["memory"]["xla"].pop("Adam"),
    ],
)
def test_a_record_of_times_that_is_not_whole_is_named(damage, tmp_path, monkeypatch, capsys):
    committed = step_time_tables.RECORDS / "tensorflow-cpu.json"
    record = json.loads(committed.read_text(encoding="utf-8"))
    damage(record)
    path = tmp_path / "tensorflow-cpu.json"
    path.write_text(json.dumps(record))
    monkeypatch.setattr(step_time_tables, "RECORDS", tmp_path)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    with pytest.raises(RecordError, match=f"{path} is damaged or of another program"):
        report.Report(tmp_path).step_time_table()


NO_RECORDS = [
    b"",
    b"[1, 2]",
    b"null",
    b"{}",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"results": {"S1": 3}}',
]


@pytest.mark.parametrize("content", NO_RECORDS)
@pytest.mark.parametrize("name", ["figure1", "regret"])
def test_a_simulation_that_is_damaged_is_named(name, content, tmp_path, capsys):
    path = simulation.path(tmp_path, name)
    path.parent.mkdir()
    path.write_bytes(content)
    assert report.main(["--folder", str(tmp_path), "--scale", "smoke"]) == 1
    error = capsys.readouterr().err
    assert f"{path} is damaged or of another program: " in error and error.count("\n") == 1
    assert "Delete it to compute it again." in error


@pytest.mark.parametrize("content", NO_RECORDS)
def test_a_record_of_counts_that_is_damaged_is_named(content, tmp_path, monkeypatch):
    path = tmp_path / "h100.json"
    path.write_bytes(content)
    monkeypatch.setattr(accelerator_table, "RECORDS", tmp_path)
    with pytest.raises(RecordError, match=f"{path} is damaged or of another program"):
        accelerator_table.tables()


def test_a_document_that_is_no_text_is_named_and_left_alone(tmp_path, capsys):
    path = tmp_path / "README.md"
    path.write_bytes(b"\xff\xfe")
    assert report.main(["--folder", str(tmp_path), "--scale", "smoke"]) == 1
    assert str(path) in capsys.readouterr().err
    assert path.read_bytes() == b"\xff\xfe"


def test_wrong_options_are_refused_on_one_line(capsys):
    for arguments, complaint in {
        "--folder=": "Argument `folder` must be a valid path. Received: folder=",
        "--scale paper": "Argument `scale` must be one of desk, smoke. Received: scale='paper'",
        "--chek": "there is no option --chek",
    }.items():
        assert_refused(report.main, arguments.split(), capsys, "examples.study.report", complaint)


@pytest.mark.parametrize(
    ("cores", "told"), [(1, "1 core of a processor"), (2, "2 cores of a processor")]
)
def test_cores_are_counted(cores, told):
    machine = {"processor": "a processor", "cores": cores, "gpus": []}
    assert markdown.device({"device": machine}) == told
