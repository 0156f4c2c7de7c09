import builtins
import re
import xml.etree.ElementTree as ET
from collections import Counter
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from typing import Any

import pytest

from quietformer.report.content import RunReport
from quietformer.report.figures.outliers import outlier_plots
from quietformer.report.markdown import markdown_table, to_markdown
from quietformer.report.page import to_html
from quietformer.report.plots import canvas, log_ticks
from quietformer.report.tables import Table
from tests.quietformer.sample_report import sample_outliers, sample_report

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Checker(HTMLParser):
    """Every tag closed in order; collects ids, references and images."""

    def __init__(self) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.images: list[dict[str, str | None]] = []
        self.tags: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags[tag] += 1
        if "id" in values:
            self.ids.append(str(values["id"]))
        self.references += [str(values[name]) for name in ("href", "src") if name in values]
        if values.get("role") == "img":
            self.images.append(values)
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack, f"</{tag}> closes nothing"
        assert self.stack.pop() == tag, f"</{tag}> closes another tag"


@cache
def _page() -> str:
    return to_html(sample_report())


def _checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.stack == []
    return checker


def test_page_is_well_formed_and_every_id_is_unique() -> None:
    checker = _checked(_page())
    assert [entry for entry, count in Counter(checker.ids).items() if count > 1] == []
    anchors = [reference[1:] for reference in checker.references if reference.startswith("#")]
    assert set(anchors) <= set(checker.ids)


def test_page_needs_nothing_from_outside() -> None:
    html = _page()
    assert re.findall(r"https?:|//[a-z]|@import|<script|<link|<img", html) == []
    assert all(reference.startswith("#") for reference in _checked(html).references)
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)\)", html))


def test_every_drawing_has_a_description_and_its_evidence() -> None:
    html = _page()
    checker = _checked(html)
    assert checker.tags["svg"] == len(checker.images) >= 15
    assert all(len(str(image["aria-label"])) > 30 for image in checker.images)
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", html, flags=re.DOTALL)
    assert all(re.match(r'<span class="tag (measured|simulated|unverified)">', caption) for caption in captions)


def test_drawings_take_the_colours_and_the_font_of_the_page() -> None:
    drawings = "".join(re.findall(r"<svg.*?</svg>", _page(), flags=re.DOTALL))
    assert "var(--before)" in drawings
    assert "DejaVu" not in drawings
    assert set(re.findall(r"#[0-9a-f]{6}", drawings)) == set()


def test_parts_that_were_not_run_are_left_out() -> None:
    report = sample_report()
    bare = RunReport(model=report.model, created=report.created, machine=report.machine)
    html = to_html(bare)
    checker = _checked(html)
    assert checker.tags["svg"] == 0
    assert [anchor for anchor in checker.ids if anchor != "machine"] == []
    assert "Latency" not in to_markdown(bare)
    no_after = to_html(replace(report, arms=(), latency=(), comparisons=(), ranges_after=()))
    assert "All named tensors" in no_after
    assert "before" not in "".join(re.findall(r"<figcaption>.*?</figcaption>", no_after, flags=re.DOTALL))
    assert _checked(to_html(replace(bare, ranges_before=report.ranges_before))).tags["svg"] == 0


def test_many_warnings_are_folded_into_one_line() -> None:
    report = sample_report()
    noisy = replace(report.latency[0], warnings=("one < two", "three", "four"))
    html = to_html(replace(report, latency=(noisy,), arms=(), comparisons=(), ranges_before=()))
    _checked(html)
    assert "3 warnings: read these figures with care" in html
    assert "<li>one &lt; two</li>" in html


def test_names_are_escaped() -> None:
    report = sample_report()
    model = replace(report.model, name="<script>x</script>")
    report = RunReport(model=model, created=report.created, machine=report.machine, notes=("a < b & c",))
    html = to_html(report)
    assert "<script>" not in html
    assert "a &lt; b &amp; c" in html


def test_the_same_report_gives_the_same_page() -> None:
    small = replace(sample_report(), arms=(), latency=(), comparisons=())
    assert to_html(small) == to_html(small)


def test_markdown_tables_align_numbers_to_the_right() -> None:
    table = Table(header=("", "Score"), rows=(("a|b", "0.8"), ("c", "0.9")), caption="Two rows.")
    assert markdown_table(table) == "|  | Score |\n| :-- | --: |\n| a\\|b | 0.8 |\n| c | 0.9 |\n\nTwo rows."


def test_markdown_tells_verdict_tables_and_warnings() -> None:
    text = to_markdown(sample_report())
    assert text.startswith("# all-MiniLM-L6-v2\n\n**W8A8 costs 0.0028 Spearman instead of 0.0613")
    assert "Accuracy gate: passed." in text
    assert "| gates + penalty | W8A8 | paper | openvino | measured | 0.8197 ± 0.0006 | 3 |" in text
    assert "> OpenVINO float: 3 of 360 samples" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.replace("\\|", "").count("|") for line in block.splitlines()}) == 1


def test_an_svg_is_xml_and_its_ids_are_its_own() -> None:
    with canvas("one") as first:
        first.axes.plot([1, 2, 3], [3.0, 1.0, 2.0], marker="o")
    with canvas("two") as second:
        second.axes.plot([1, 2, 3], [3.0, 1.0, 2.0], marker="o")
    ids = [{element.get("id") for element in ET.fromstring(drawing.svg).iter()} - {None} for drawing in (first, second)]
    assert ids[0]
    assert ids[0].isdisjoint(ids[1])


def test_worst_dimension_is_named_in_words() -> None:
    *_, last = outlier_plots(sample_outliers(largest=196.0), sample_outliers(largest=9.0))
    assert "in dimension 99" in last.alt
    assert last.wide


def test_logarithmic_ticks_are_round_and_inside() -> None:
    assert log_ticks(0.8, 30.0) == pytest.approx([1, 2, 5, 10, 20])
    assert log_ticks(0.5, 90_000.0) == pytest.approx([1, 10, 100, 1000, 10_000])


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_extra_says_how_to_install_it(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".", maxsplit=1)[0] == missing:
            raise ImportError(name)
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"pip install 'quietformer\[report\]'"):
        to_html(sample_report())


def test_engines_are_shown_with_share_size_times_and_refused_targets() -> None:
    text = to_markdown(sample_report())
    assert "| tensorrt-rtx 1.7.1 | 8.0, 8.9 | int8 + float16 | unverified | 46% | 24.0 MB | 0.4 s | 11.1 s |" in text
    assert "not built: no float32 products" in text
    checker = Checker()
    checker.feed(to_html(sample_report()))
    assert "engines" in checker.ids
