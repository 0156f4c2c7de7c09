"""A diagnosis as one HTML page."""

from __future__ import annotations

from quietformer.report.diagnosis_content import Diagnosis
from quietformer.report.diagnosis_tables import gradient_table, heads_table, places_table
from quietformer.report.figures.attention_maps import gate_plots, head_plots, rest_plots
from quietformer.report.figures.outlier_places import outlier_place_plots
from quietformer.report.figures.outliers_of_one import outlier_plots_of_one
from quietformer.report.figures.plot import Plot
from quietformer.report.figures.softmax_pull import softmax_pull_plots
from quietformer.report.number_text import figure
from quietformer.report.outlier_content import outlier_totals
from quietformer.report.page import OUTLIER_LEAD
from quietformer.report.page_template import Page, Section, model_line, render
from quietformer.report.tables import machine_table, tensor_table


def diagnosis_to_html(diagnosis: Diagnosis) -> str:
    """The page; a part that was not measured is left out.

    Raises:
        ImportError: jinja2 or matplotlib is not installed.
    """
    return render(
        Page(
            kind="diagnosis",
            name=diagnosis.model.name,
            facts=[
                *model_line(diagnosis.model, diagnosis.machine),
                f"{diagnosis.data['examples']:,} examples of {diagnosis.data['source']}",
            ],
            created=diagnosis.created,
            headline=diagnosis_headline(diagnosis),
            sections=_sections(diagnosis),
            machine=machine_table(diagnosis.machine),
        )
    )


def diagnosis_headline(diagnosis: Diagnosis) -> str:
    """One sentence: how far values reach, and how much attention rests."""
    totals = outlier_totals(diagnosis.outliers)
    kurtosis = f", average kurtosis {figure(totals.kurtosis)}" if totals.kurtosis is not None else ""
    idle = [value for layer in diagnosis.attention["idleness"] for value in layer]
    resting = sum(value > 0.5 for value in idle)
    return (
        f"Largest value {figure(totals.largest)}{kurtosis}; {resting} of {len(idle)} heads rest for more than half of their"
        " attention."
    )


def diagnosis_plots(diagnosis: Diagnosis) -> dict[str, list[Plot]]:
    """Every drawing, by the part of the page that it belongs to."""
    return {
        "outliers": outlier_plots_of_one(diagnosis.outliers),
        "places": outlier_place_plots(diagnosis),
        "attention": rest_plots(diagnosis),
        "heads": head_plots(diagnosis),
        "gates": gate_plots(diagnosis),
        "pull": softmax_pull_plots(diagnosis),
    }


def _sections(diagnosis: Diagnosis) -> list[Section]:
    plots = diagnosis_plots(diagnosis)
    sections = [
        Section(
            anchor="outliers",
            title="Outliers",
            lead=OUTLIER_LEAD,
            plots=plots["outliers"],
            folded=tensor_table(diagnosis.outliers),
            folded_title="All named tensors",
        ),
        Section(
            anchor="places",
            title="Where they lie",
            lead="Values further than six standard deviations from their sequence's mean, by hidden dimension and by token.",
            plots=plots["places"],
            table=places_table(diagnosis),
        ),
        Section(
            anchor="attention",
            title="Attention at rest",
            lead=(
                "A head that wants to leave the stream alone puts its attention on a token whose value is next to nothing."
                " For that its softmax needs a wide input, and the layers below learn to write it."
            ),
            plots=plots["attention"],
            table=heads_table(diagnosis),
        ),
    ]
    if plots["heads"]:
        sections.append(
            Section(
                anchor="heads",
                title="Chosen heads on one sequence",
                lead="What a head attends to, how large the values there are, and what it moves: probability times norm. Delimiters are red.",
                plots=plots["heads"],
            )
        )
    if plots["gates"]:
        sections.append(
            Section(
                anchor="gates",
                title="Gates",
                lead="A closed gate is the other way to do nothing. The gate's probability, without its scale.",
                plots=plots["gates"],
            )
        )
    if (pull := gradient_table(diagnosis)) is not None:
        sections.append(
            Section(
                anchor="pull",
                title="Who asks for outliers?",
                lead=(
                    "The gradient of the loss at what an FFN writes, by way of the next layer's softmax alone: one dot per hidden"
                    " dimension, its norm in multiples of the median. If the softmax asks for outliers, large dimensions stand high."
                ),
                plots=plots["pull"],
                table=pull,
            )
        )
    return sections
