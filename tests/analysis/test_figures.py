"""What figures draw is what the frames say: lengths, places, lines and words, read off the artists."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.frames import memory, run, runs
from shardlab import analysis

pytest.importorskip("matplotlib", reason="figures need matplotlib")

from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.container import BarContainer
from matplotlib.text import Text

from shardlab.analysis import figures
from shardlab.analysis.figures import deliveries
from shardlab.analysis.figures.style import BLUE, GREEN, ORANGE, VERMILLION, fold, short


def blank() -> Axes:
    return figures.sheet()[1]


def bars(ax: Axes) -> dict[str, list[tuple[float, float]]]:
    """(start, length) of the horizontal bars, by what the legend says of them."""
    groups: list[Any] = [group for group in ax.containers if isinstance(group, BarContainer)]
    return {
        group.get_label(): [(round(bar.get_x(), 6), round(bar.get_width(), 6)) for bar in group]
        for group in groups
    }


def points(line: Any) -> tuple[list[float], list[float]]:
    return list(line.get_xdata()), list(line.get_ydata())


def names(ax: Axes) -> list[str]:
    return [text.get_text().replace("\n", " ") for text in ax.get_yticklabels()]


def legend(ax: Axes) -> list[str]:
    found: Any = ax.get_legend()
    return [text.get_text() for text in found.get_texts()]


def upright_lines(ax: Axes) -> list[float]:
    """Where vertical lines across the whole axes stand."""
    return [points(line)[0][0] for line in ax.lines if points(line)[1] == [0, 1]]


def notes(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def nodes(**columns: Any) -> pd.DataFrame:
    """Four copies in ranks with a tenth in flight, one that is shared, one of no known kind, and nothing known."""
    unknown = float("nan")
    usual = {
        "label": ["four", "one", "old", "failed"],
        "dataset_bytes": [100, 100, 100, unknown],
        "copies": [4.0, 1.0, 2.5, unknown],
        "copies_low": [3.9, 0.9, 2.0, unknown],
        "copies_high": [4.1, 1.1, 3.0, unknown],
        "data_private_bytes": [400, -3, unknown, unknown],
        "data_shared_bytes": [0, 60, unknown, unknown],
        "data_file_bytes": [0, 40, unknown, unknown],
        "inflight_bytes": [10, 0, 0, unknown],
    }
    return pd.DataFrame({**usual, **columns})


def test_bars_of_copies_are_as_long_as_the_copies() -> None:
    ax = figures.copies_bars(blank(), nodes())
    assert names(ax) == ["four", "one", "old", "failed"]
    drawn = bars(ax)
    assert [length for _, length in drawn["private"]] == [4, 0, 0, 0]
    assert drawn["shared memory"][1] == (0, 0.6)
    assert drawn["page cache"][1] == (0.6, 0.4)
    assert [length for _, length in drawn["kind not known"]] == [0, 0, 2.5, 0]
    assert drawn["in flight, no copies"] == [(4, 0.1)]
    assert upright_lines(ax) == [1]
    assert notes(ax) == ["4.00", "1.00", "2.50", "not known"]
    assert ax.get_xlabel() == "copies of the dataset on the node"


def test_what_is_in_flight_is_only_outlined() -> None:
    ax = figures.copies_bars(blank(), nodes())
    groups: Any = ax.containers
    (flying,) = [group for group in groups if group.get_label() == "in flight, no copies"]
    assert flying[0].get_facecolor()[3] == 0


def test_the_whiskers_of_copies_are_its_interval() -> None:
    ax = figures.copies_bars(blank(), nodes())
    groups: Any = ax.containers
    (whiskers,) = [group for group in groups if group.get_label() == "copies"]
    ends = [sorted(segment[:, 0].round(6)) for segment in whiskers[2][0].get_segments()]
    assert ends == [[3.9, 4.1], [0.9, 1.1], [2.0, 3.0]]


def test_rows_of_an_older_version_have_bars_without_a_kind() -> None:
    old = nodes()[["label", "dataset_bytes", "copies"]]
    assert [length for _, length in bars(figures.copies_bars(blank(), old))["kind not known"]] == [
        4,
        1,
        2.5,
        0,
    ]


def test_nodes_of_one_run_are_told_apart() -> None:
    both = nodes().head(2).assign(label="keyed + shared", node=["a", "b"])
    assert names(figures.copies_bars(blank(), both)) == ["keyed + shared on a", "keyed + shared on b"]


def test_throughput_is_sorted_and_says_what_failed() -> None:
    table = analysis.by_configuration(
        runs(
            run("a", "keyed", None, status="failed"),
            run("b", "ring", 1000.0),
            *(run(str(speed), "distributed", speed) for speed in (2000.0, 3000.0, 4000.0)),
        )
    )
    ax = figures.throughput(blank(), table)
    assert names(ax) == ["distributed + private", "ring + private", "keyed + private"]
    (drawn,) = bars(ax).values()
    assert [length for _, length in drawn] == [3000, 1000, 0]
    assert notes(ax) == ["3,000", "1,000", "1 failed"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first is on top
    assert ax.get_xlabel().startswith("distinct samples/s")


def test_seconds_are_stacked_rank_by_rank_over_epochs() -> None:
    ranks = pd.DataFrame({
        "run_id": ["r", "r", "r", "other"], "rank": [1, 0, 0, 0], "wait_s": [1.0, 0.5, 0.25, 9.0],
        "compute_s": [4.0, 2.0, 2.0, 9.0], "comm_s": [None] * 4, "other_s": [0.5, 0.25, 0.25, 9.0],
    })  # fmt: skip
    ax = figures.seconds(blank(), ranks, "r")
    assert names(ax) == ["rank 0", "rank 1"]
    assert bars(ax) == {
        "waiting for a batch": [(0, 0.75), (0, 1)],
        "computing": [(0.75, 4), (1, 4)],
        "other": [(4.75, 0.5), (5, 0.5)],
    }
    assert legend(ax) == list(bars(ax))
    assert "seconds" in ax.get_xlabel()


ROWS = memory(
    (0.0, 1, "launcher", None, None, 500, 300),
    (0.5, 2, "other", None, None, 100, None),
    (1.0, 2, "rank", 0, None, 200, 150),
    (2.0, 2, "rank", 0, None, 300, None),
    (1.0, 3, "rank", 1, None, 210, None),
    (1.0, 4, "worker", 1, 0, 50, 20),
    (1.0, 5, "worker", None, 0, 40, None),
)


def test_memory_has_two_lines_for_each_process() -> None:
    ax = figures.memory_over_time(blank(), ROWS, "r")
    lines = [points(line) for line in ax.lines]
    assert ([0.5, 1.0, 2.0], [100, 200, 300]) in lines
    assert ([1.0], [150]) in lines
    assert len(lines) == 10
    assert legend(ax) == ["rank 0", "rank 1", "workers of 1", "readers", "launcher, helpers"]
    assert ax.get_ylabel() == "PSS (dots) and RSS (thin), MiB"


def test_the_axis_says_what_was_read() -> None:
    ax = figures.memory_over_time(blank(), ROWS.assign(pss_bytes=pd.NA), "r")
    assert ax.get_ylabel() == "RSS (thin), MiB"
    assert legend(ax)[0] == "rank 0"


def test_a_long_line_keeps_its_peak() -> None:
    many = memory(*((float(t), 1, "rank", 0, None, 900 if t == 4567 else 100, None) for t in range(10_000)))
    line = figures.memory_over_time(blank(), many, "r").lines[0]
    assert len(points(line)[0]) <= 1000
    assert max(points(line)[1]) == 900


def compared() -> pd.DataFrame:
    return pd.DataFrame({
        "name": ["faster", "unclear", "slower", "alone", "unknown"],
        "ratio": [20.0, 1.1, 0.5, 3.0, None],
        "low": [15.0, 0.9, 0.4, None, None], "high": [30.0, 1.3, 0.6, None, None],
        "target": [10.0, None, None, None, None],
    })  # fmt: skip


def test_ratios_stand_on_a_log_axis_with_a_line_at_one() -> None:
    ax = figures.ratios(blank(), compared())
    assert ax.get_xscale() == "log"
    assert upright_lines(ax) == [1]
    assert names(ax) == list(compared()["name"])
    assert notes(ax) == ["20.0", "1.10", "0.500", "3.00", "not known"]
    groups: Any = ax.containers
    drawn = {group.get_label(): (points(group[0])[0], to_hex(group[0].get_color())) for group in groups}
    assert drawn == {
        "higher": ([20], GREEN), "not clear of 1": ([1.1, 3], ORANGE), "lower": ([0.5], VERMILLION),
    }  # fmt: skip
    assert sorted(legend(ax)) == ["higher", "lower", "not clear of 1", "target"]


def test_a_curve_has_a_line_and_a_band_for_each_name() -> None:
    frame = pd.DataFrame({
        "n": [10, 1, 1, 10], "who": ["a", "a", "b", "b"], "first_s": [2.0, 1.0, 5.0, 6.0],
        "first_s_low": [1.5, 0.5, 4.0, 5.0], "first_s_high": [2.5, 1.5, 6.0, 7.0],
    })  # fmt: skip
    ax = figures.curve(blank(), frame, "n", "first_s", "who", log="xy")
    assert [points(line) for line in ax.lines] == [
        ([1, 10], [1, 2]), ([1, 10], [5, 6]),
    ]  # fmt: skip
    corners: Any = ax.collections[0].get_paths()[0].vertices
    assert {(1.0, 0.5), (1.0, 1.5), (10.0, 1.5), (10.0, 2.5)} <= {(float(x), float(y)) for x, y in corners}
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("n", "first, s")
    assert legend(ax) == ["a", "b"]


def test_ownership_shows_each_sample_where_it_was_handed_out() -> None:
    indices = np.array([[[0, 2], [4, -1]], [[1, 3], [-1, -1]]])  # ranks x steps x batch
    ax = figures.ownership(blank(), indices)
    shown: Any = ax.images[0].get_array()
    assert shown.filled(-1).tolist() == [[0, 4], [2, -1], [1, -1], [3, -1]]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("step  (blank: no sample)", "rank")
    assert names(ax) == ["0", "1"]


def test_a_large_ledger_is_thinned_and_says_so() -> None:
    indices = np.arange(4 * 3000 * 128).reshape(4, 3000, 128)
    ax = figures.ownership(blank(), indices)
    picture: Any = ax.images[0].get_array()
    lines, columns = picture.shape
    assert lines <= deliveries.LINES
    assert columns <= deliveries.COLUMNS
    assert "one in 5 is shown" in ax.get_xlabel()


def test_owners_are_counted_along_the_dataset() -> None:
    indices = np.array([[[0, 1, 1]], [[1, 2, -1]]])  # sample 3 goes to nobody, 1 to both
    assert deliveries.owners_of(indices, 4).tolist() == [1, 2, 1, 0]
    ax = figures.owners(blank(), indices, 4)
    assert legend(ax) == ["one rank (2)", "two or more (1)", "no rank (1)"]
    heights: dict[str, list[float]] = {}
    groups: Any = ax.containers
    for bar in (bar for group in groups for bar in group):
        heights.setdefault(to_hex(bar.get_facecolor()), []).append(bar.get_height())
    assert heights == {BLUE: [1, 0, 1, 0], ORANGE: [0, 1, 0, 0], VERMILLION: [0, 0, 0, 1]}


def test_one_hole_among_thousands_is_marked() -> None:
    handed = np.delete(np.arange(100_000), 50_000).reshape(1, -1, 3)
    ax = figures.owners(blank(), handed, 100_000)
    marks = [x for line in ax.lines for x in points(line)[0]]
    assert marks == pytest.approx([50_000], abs=100_000 / deliveries.BINS)


LONG = [
    f"accelerate-shard + private, on a-long-name:256MiB:3x224x224, {k} workers, tail drop" for k in range(4)
]


def everything() -> list[Axes]:
    """One of each figure, with rows in it."""
    indices = np.arange(24).reshape(2, 4, 3)
    ranks = pd.DataFrame({"run_id": ["r"], "rank": [0], "wait_s": [1.0]})
    table = analysis.by_configuration(runs(run("a", "keyed", 1.0)))
    frame = pd.DataFrame({"n": [1, 10], "y": [1.0, 2.0], "who": "a"})
    return [
        figures.copies_bars(blank(), nodes(label=LONG)), figures.memory_over_time(blank(), ROWS, "r"),
        figures.throughput(blank(), table), figures.seconds(blank(), ranks, "r"),
        figures.ownership(blank(), indices), figures.owners(blank(), indices, 24),
        figures.ratios(blank(), compared()), figures.curve(blank(), frame, "n", "y", "who"),
    ]  # fmt: skip


def test_every_figure_names_its_axes_and_is_legible_within_its_frame() -> None:
    for ax in everything():
        assert ax.get_xlabel()
        figure: Any = ax.figure
        figure.draw_without_rendering()
        for text in figure.findobj(Text):
            if text.get_visible() and text.get_text():
                assert text.get_fontsize() >= 9
                assert to_hex(text.get_color()) == figures.INK
        drawn, whole = ax.get_tightbbox(), figure.bbox
        assert drawn is not None
        assert drawn.x0 >= whole.x0 - 1
        assert drawn.x1 <= whole.x1 + 1


def test_colours_are_told_apart_and_unlike_those_of_the_page() -> None:
    colours = [*figures.PALETTE, figures.INK, figures.QUIET, figures.RULE]
    assert len(set(colours)) == len(colours)
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in colours)


def test_nothing_to_draw_is_said_in_words() -> None:
    none = np.full((2, 0, 4), -1)
    for ax in (
        figures.copies_bars(blank(), nodes().head(0)), figures.memory_over_time(blank(), ROWS, "s"),
        figures.seconds(blank(), pd.DataFrame({"run_id": ["r"], "rank": [0]}), "s"),
        figures.ownership(blank(), none), figures.owners(blank(), none, 0),
        figures.ratios(blank(), compared().head(0)),
        figures.throughput(blank(), analysis.by_configuration(runs(run("a", "keyed", 1.0)).head(0))),
        figures.curve(blank(), pd.DataFrame(), "x", "y", "by"),
    ):  # fmt: skip
        assert len(notes(ax)) == 1
        assert not ax.axison


def test_names_are_text_and_no_mathematics() -> None:
    hostile = r"$\frac$ <b> $a_b$"
    ax = figures.copies_bars(blank(), nodes(label=[hostile] * 4))
    line = figures.curve(blank(), pd.DataFrame({"n": [1], "y": [1.0], "who": hostile}), "n", "y", "who")
    for drawn in (ax, line, figures.memory_over_time(blank(), ROWS, hostile)):
        figure: Any = drawn.figure
        figure.draw_without_rendering()
    assert names(ax) == [hostile] * 4


def test_a_ratio_of_nothing_and_a_dataset_of_no_bytes_draw_no_point() -> None:
    ax = figures.ratios(
        blank(), pd.DataFrame({"name": ["a", "b"], "ratio": [0.0, 2.0], "low": None, "high": None})
    )
    assert notes(ax) == ["0", "2.00"]
    empty = figures.copies_bars(blank(), nodes(dataset_bytes=0, copies=None, copies_high=None))
    assert notes(empty) == ["not known"] * 4


def test_names_are_broken_after_commas_first() -> None:
    assert (
        fold("keyed + shared, on synthetic:256MiB:3x224x224")
        == "keyed + shared,\non synthetic:256MiB:3x224x224"
    )
    assert fold("keyed + shared, 2 workers") == "keyed + shared, 2 workers"
    assert max(len(line) for line in fold("x" * 100).split("\n")) < 40


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (0.5, "0.5"), (30, "30"), (1e3, "1,000"), (1e9, "1e9")]
)
def test_numbers_on_axes_are_short(value: float, said: str) -> None:
    assert short(value) == said


def test_matplotlib_is_loaded_by_figures_alone() -> None:
    code = "from shardlab import analysis; import sys; print('matplotlib' in sys.modules, 'torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["False", "False"]
