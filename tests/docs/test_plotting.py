"""Plots and the report: their content, and when they are imported."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import tamis
from tamis.guard.statistics import History
from tamis.plotting import pareto, spread_apart, svg
from tamis.report import Report

pytest.importorskip("matplotlib").use("agg")

SKEWED = tamis.Workload.zipf(1.0, universe=10**5, sample=5 * 10**4)


@pytest.fixture(autouse=True)
def _closed():
    """Close what a test has drawn."""
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def labels(ax):
    return [text.get_text() for text in ax.texts]


def test_compare_names_every_filter_and_draws_the_front():
    choices = tamis.advise(5000, SKEWED, bits_per_key=10).choices
    ax = tamis.compare(choices)
    assert sorted(labels(ax)) == sorted(each.name for each in choices)
    assert ax.get_yscale() == "log"
    front = ax.lines[0].get_xydata().tolist()
    for each in choices:
        assert any(b <= each.bits_per_key and r <= each.expected_fpr for b, r in front)


def test_compare_takes_filters_plans_and_names():
    built = tamis.Ribbon.build(range(1000), bits_per_key=8)
    plan = tamis.plan(1000, bits_per_key=8, layer="bloom")
    assert labels(tamis.compare([built, plan])) != labels(tamis.compare({"a": built, "b": plan}))
    with pytest.raises(ValueError, match="filters must not be empty"):
        tamis.compare([])
    with pytest.raises(TypeError, match=r"filters must be a list .* not 1000 \(int\)"):
        tamis.compare(1000)
    with pytest.raises(TypeError, match=r"filters\[1\] must be .* not int"):
        tamis.compare([built, 3])


def test_no_name_hides_another():
    rng = np.random.default_rng(1)
    for _ in range(50):
        places = np.sort(rng.random(12) ** 3).tolist()
        moved = np.array(spread_apart(places, 0.06))
        assert (np.diff(moved) > 0.06 - 1e-9).all()
        assert moved.min() >= 0
    assert spread_apart([0.1, 0.5], 0.06) == [0.1, 0.5]


def test_the_front_is_what_nothing_beats():
    points = np.random.default_rng(2).random((200, 2)).round(2).tolist()
    points = [tuple(each) for each in points]
    front = pareto(points)
    for bits, rate in points:
        assert any(b <= bits and r <= rate for b, r in front)
    for one in front:
        beaten = [p for p in points if p != one and p[0] <= one[0] and p[1] <= one[1]]
        assert not beaten


def test_history_loses_nothing():
    history, rng = History(), np.random.default_rng(3)
    total = np.zeros(3, int)
    for _ in range(40_000):
        asked = int(rng.integers(1, 100))
        absent = int(rng.integers(0, asked + 1))
        wrong = int(rng.integers(0, absent + 1))
        history.record(asked, absent, wrong)
        total += asked, absent, wrong
    stretches = history.read()
    assert 100 < len(stretches) <= 512
    assert sum(each.negatives for each in stretches) == total[1]
    assert sum(each.false_positives for each in stretches) == total[2]
    ends = [each.queries for each in stretches]
    assert ends == sorted(ends)
    assert ends[-1] == total[0]
    widths = np.diff([0, *ends])[:-1]
    assert widths.max() < 2.5 * widths.min()


def test_a_guard_draws_its_rate_over_time():
    guard = tamis.Guard(tamis.stores.Memory(), tamis.Telescoping(500, fpr=2**-5, seed=1))
    guard.put_many(dict.fromkeys(range(500), b""))
    for _ in range(8):
        guard.get_many(range(1000, 3000))
    ax = guard.plot()
    steps = ax.lines[0].get_ydata()
    assert steps[0] > 0.01 > steps[-1]  # it learns
    assert sum(each.false_positives for each in guard.history) == guard.stats.false_positives
    guard.close()


def test_svg_follows_the_colour_of_the_page():
    drawn = svg(SKEWED.plot())
    ElementTree.fromstring(drawn)
    assert "currentColor" in drawn
    assert "#000000" not in drawn
    assert "#ffffff" not in drawn
    assert "fraction of the queries" in drawn  # text stays text
    width = float(re.match(r'<svg [^>]*style="max-width: ([\d.]+)pt"', drawn)[1])
    assert width == pytest.approx(float(re.search(r'viewBox="0 0 ([\d.]+) ', drawn)[1]))


def test_a_report_needs_nothing_else(tmp_path):
    w = tamis.Workload.from_queries(1000 + np.random.default_rng(4).zipf(1.4, 5000) % 500)
    advice = tamis.advise(900, w, bits_per_key=10)
    advice.report(tmp_path / "advice.html")
    page = (tmp_path / "advice.html").read_text()
    assert page.count("<svg") == 4
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page
    found = set(re.findall(r"https?://[^\s\"'<>]+", page))
    assert {each for each in found if "w3.org" not in each} == set()
    assert not re.findall(r"<(script|link|img|iframe)", page)
    for each in advice.choices:
        assert each.name in page


def test_a_long_report_has_contents_that_lead_to_its_parts():
    report = Report("Long", wide=True).contents([("First & last", "a")])
    report.heading("First & last", anchor="a").heading("Part", level=3)
    page = str(report.table(["x"], [["1"]], prose=True, anchors=["a"]).image(b"png", "a <dot>"))
    assert '<li><a href="#a">First &amp; last</a></li>' in page
    assert '<h2 id="a">' in page
    assert "<h3>Part</h3>" in page
    assert (
        '<table class=prose><tr class=head><th>x</th></tr><tr><td data-name="x"><a href="#a">1'
        in page
    )
    assert '<img alt="a &lt;dot&gt;" src="data:image/png;base64,cG5n">' in page
    assert "<body class=wide>" in page


def test_a_report_shows_text_as_text():
    page = str(Report("a < b").text("<script>").table(["x"], [["<td>"]]).bullets(["&"]))
    assert "<script>" not in page
    assert "a &lt; b" in page
    assert "&lt;td&gt;" in page


def test_plotting_is_imported_only_to_plot():
    code = (
        "import sys, tamis; w = tamis.Workload.zipf(1.0, 1000, 500);"
        "tamis.advise(1000, w); tamis.Guard; tamis.AsyncGuard; tamis.Collection; tamis.parquet;"
        "sys.exit('tamis.plotting' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
