from __future__ import annotations

import itertools

import pytest

from chunkbench.report import build, figures
from chunkbench.report.figures.style import MOST_PANELS
from chunkbench.workloads.decode.curves import panels, x_axis
from tests.workloads.drawings import caption, check_inside, drawn


def lines(plot) -> dict[str, tuple[list[float], list[float]]]:
    """Label -> curve. Lines with error bars have their label on the container."""
    curves = {line.get_label(): line for line in plot.get_lines()}
    curves |= {bars.get_label(): bars.lines[0] for bars in plot.containers}
    return {label: (list(line.get_xdata()), list(line.get_ydata())) for label, line in curves.items()}


def test_one_panel_for_each_prompt_length(table3) -> None:
    plots = [plot for plot in drawn(table3).axes if plot.get_visible()]
    assert [plot.get_title() for plot in plots] == ["$n_p = 1024$", "$n_p = 2048$", "$n_p = 4096$"]
    assert {plot.get_xlabel() for plot in plots} == {"shared part of the prompt, $n_s / n_p$"}
    assert plots[0].get_ylabel() == "speed-up of ChunkAttn"
    assert {plot.get_yscale() for plot in plots} == {"log"}


def test_curves_here_and_in_the_paper(table3) -> None:
    curves = lines(drawn(table3).axes[0])
    x, y = curves["vLLM*"]
    assert x == [0, 0.5, 0.75, 1]
    assert y[-1] == pytest.approx((24.9 * 32 + 5.1 * 1024) / (26.0 * 32 + 2.1 * 1024))
    x, y = curves["vLLM*, paper"]
    assert x == [0, 0.5, 0.75, 1]
    assert y[-1] == pytest.approx(154.46 / 56.0)
    # vLLM replaces the column that was not measured, so the paper's curve is drawn once.
    assert "PagedAttn*, paper" not in curves
    assert "xformers, paper" in curves
    assert "xformers" not in curves
    assert "Shared matmul, paper" not in curves


def test_paper_is_dotted_and_hollow_variants_here_differ_in_line(table3) -> None:
    plot = drawn(table3).axes[0]
    paper = [line for line in plot.get_lines() if str(line.get_label()).endswith(", paper")]
    here = [bars.lines[0] for bars in plot.containers]
    assert {tuple(line._unscaled_dash_pattern[1]) for line in paper} == {(1, 2)}
    assert {line.get_markerfacecolor() for line in paper} == {"white"}
    assert {bars.get_label(): bars.lines[0].get_linestyle() for bars in plot.containers} == {
        "Naive": "-", "FlashAttn": "-", "vLLM": "-", "vLLM*": "--", "Shared matmul": "-", "ChunkAttn, no TPP": "--",
    }  # fmt: skip
    colours = {bars.get_label(): bars.lines[0].get_color() for bars in plot.containers}
    assert colours["vLLM"] == colours["vLLM*"]
    assert "white" not in {line.get_markerfacecolor() for line in here}


def test_curves_differ_in_marker_and_not_only_in_colour(table3) -> None:
    here = [bars.lines[0] for bars in drawn(table3).axes[0].containers]
    assert len({line.get_marker() for line in here}) == len(here) == 6


def test_all_curves_and_1_lie_inside_the_limits(table3) -> None:
    for plot in drawn(table3).axes:
        low, high = plot.get_ylim()
        assert low < 1 < high
        for _, y in lines(plot).values():
            assert low < min(y) <= max(y) < high


def test_the_caption_names_machine_dtype_and_protocol(table3) -> None:
    text = caption(table3)
    for part in ("Invented CPU 9000", "bfloat16", "protocol strict, caches cold", "A100 80 GB, float16"):
        assert part in text


def test_the_same_run_gives_identical_files(table3, tmp_path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        for ending in figures.PICTURES:
            figures.save(drawn(table3), folder / f"figure{ending}")
    for name in ("figure.png", "figure.svg", "figure.pdf"):
        first, second = ((folder / name).read_bytes() for folder in folders)
        assert first == second
        assert first


def test_batch_size_is_the_x_axis_if_it_varies_most(make_case, make_run) -> None:
    cases = [
        make_case(name, n_s=100, batch_size=batch, heads=heads, us=[10.0 * batch])
        for batch, heads in itertools.product((16, 32, 64), (8, 32))
        for name in ("naive", "chunk_attn")
    ]
    run = make_run(cases)
    assert x_axis(build(run)) == "batch_size"
    plots = [plot for plot in drawn(run).axes if plot.get_visible()]
    assert [plot.get_title() for plot in plots] == ["$h = 8$", "$h = 32$"]
    assert lines(plots[0])["Naive"] == ([16, 32, 64], [1, 1, 1])


def test_doubling_values_are_evenly_spaced_and_trees_are_left_out_of_a_prompts_axis(make_case, make_run) -> None:
    places = [{"n_s": 512, "prompts": prompts} for prompts in (1, 2, 4, 8)]
    places += [{"n_s": None, "tree": ((512, ((512, 16), (512, 16))),)}]
    run = make_run([make_case(name, us=[1.0], **place) for place in places for name in ("naive", "chunk_attn")])
    (plot,) = (plot for plot in drawn(run).axes if plot.get_visible())
    assert plot.get_xscale() == "log"
    assert lines(plot)["Naive"][0] == [1, 2, 4, 8]
    assert "1 point without a place on this axis" in caption(run)


def test_surplus_panels_are_left_out_and_the_caption_says_so(make_case, make_run) -> None:
    cases = [
        make_case(name, n_s=n_s, batch_size=batch, us=[1.0])
        for batch, n_s in itertools.product(range(1, 12), range(0, 1024, 80))
        for name in ("naive", "chunk_attn")
    ]
    run = make_run(cases)
    assert len(panels(build(run))) == 11
    assert sum(plot.get_visible() for plot in drawn(run).axes) == MOST_PANELS
    assert "The first 9 of 11 panels" in caption(run)


def test_no_figure_without_a_comparison(make_case, make_run) -> None:
    run = make_run([make_case("chunk_attn"), make_case("xformers")])
    assert figures.draw(build(run), run.manifest) is None


def test_a_figure_of_one_point(make_case, make_run) -> None:
    run = make_run([make_case("chunk_attn", n_s=100), make_case("naive", n_s=100)])
    (plot,) = drawn(run).axes
    assert lines(plot)["Naive"][0] == [pytest.approx(100 / 1024)]


def test_one_extreme_round_does_not_squeeze_the_curves(make_case, make_run) -> None:
    cases = [make_case("chunk_attn", n_s=n_s, us=[10.0, 10.0, 0.01]) for n_s in (0, 512)]
    cases += [make_case("naive", n_s=n_s, us=[20.0, 20.0, 20.0]) for n_s in (0, 512)]
    (plot,) = drawn(make_run(cases)).axes
    assert plot.get_ylim()[1] < 10


def test_nothing_is_cut_off_at_the_edges(table3, make_case, make_run) -> None:
    small = make_run(
        [make_case(name, n_s=100, us=[us]) for name, us in (("chunk_attn", 900.0), ("naive", 1.0))],
        title="A title of an experiment that has a lot to say about what it measures and why it does so",
    )
    for run in (table3, small):
        picture = drawn(run)
        labels = [plot.yaxis.label for plot in picture.axes]
        check_inside(picture, [*picture.texts, *picture.legends[0].get_texts(), *labels])
