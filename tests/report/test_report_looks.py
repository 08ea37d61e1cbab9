"""One look for a method in every figure, panels that hold what is compared, and titles of which nothing is cut."""

import re
from importlib import resources

from rrcluster.report import make_report
from rrcluster.report.curves import accuracy_panels
from rrcluster.report.drawing import PALETTE
from rrcluster.report.figures import FIGURES, draw_figures
from rrcluster.report.folders import find_runs
from rrcluster.report.page import lead
from rrcluster.report.series import Look, method_looks

LONG = "an-algorithm-with-a-name-that-takes-more-room-than-there-is-in-a-column-of-a-page"
RR = {"rebalance": "coin", "min_cluster_size": 15}


def test_two_runs_at_two_epsilons_share_a_panel(tmp_path, run_folder):
    run_folder(tmp_path / "a", epsilon=2.0)
    run_folder(tmp_path / "b", epsilon=8.0)
    assert lead(find_runs([tmp_path])).startswith("This report shows 1 method in 2 settings (DP-IFCA, epsilon 2; ")
    (panel,) = accuracy_panels(find_runs([tmp_path]))
    assert [curve.label for curve in panel.curves] == ["DP-IFCA, epsilon 2", "DP-IFCA, epsilon 8"]


def test_two_models_on_the_same_data_share_a_panel(tmp_path, run_folder):
    run_folder(tmp_path / "a", model="linear")
    run_folder(tmp_path / "b", model="mlp")
    (panel,) = accuracy_panels(find_runs([tmp_path]))
    assert len(panel.curves) == 2


def test_many_methods_at_several_epsilons_have_a_panel_each(tmp_path, run_folder):
    for epsilon in (2.0, 8.0):
        for method in ("fedavg", "ifca", "fesem", "fedcam"):
            run_folder(tmp_path / f"{method}-{epsilon}", algorithm=method, epsilon=epsilon)
    panels = accuracy_panels(find_runs([tmp_path]))
    assert [panel.title for panel in panels] == ["epsilon 2", "epsilon 8"]


def test_an_epsilon_in_a_title_is_rounded_up_and_short(tmp_path, run_folder, figures):
    for method in ("fedavg", "ifca", "fesem", "fedcam"):
        for multiplier, epsilon in ((1.1, 3.99993), (0.9, 5.2341)):
            run_folder(
                tmp_path / f"{method}-{multiplier}",
                algorithm=method,
                epsilon=None,
                noise_multiplier=multiplier,
                cost=epsilon,
            )
    groups = find_runs([tmp_path])
    assert [panel.title for panel in accuracy_panels(groups)] == ["epsilon 4", "epsilon 5.24"]
    for name in ("accuracy", "privacy-utility"):
        (drawing,) = FIGURES[name](groups)
        assert "3.99" not in drawing.alt + drawing.caption


def test_each_epsilon_stands_beside_its_own_delta(tmp_path, run_folder, figures):
    run_folder(tmp_path / "a", epsilon=8.0, delta=1e-3)
    run_folder(tmp_path / "b", epsilon=2.0, delta=1e-5, algorithm="fedavg")
    page = make_report(tmp_path).page.read_text()
    facts = re.search(r'<dl class="facts">(.*?)</dl>', page).group(1)
    assert "2.00 (delta 1e-5), 8.00 (delta 1e-3)" in facts
    assert "<dt>delta</dt>" not in facts


def test_a_method_looks_the_same_in_every_report(tmp_path, run_folder):
    run_folder(tmp_path / "all" / "a", algorithm="fedavg")
    run_folder(tmp_path / "all" / "b")
    run_folder(tmp_path / "all" / "c", **RR)
    run_folder(tmp_path / "one" / "c", **RR)
    several, one = (method_looks(find_runs([tmp_path / name])) for name in ("all", "one"))
    assert several["RR-Cluster (IFCA), B=15"] == one["RR-Cluster (IFCA), B=15"]
    assert len({look.colour for look in several.values()}) == 3


def test_with_and_without_exploration_a_method_keeps_its_look(tmp_path, run_folder):
    for name, settings in {"plain": {}, "explored": {"exploration": 1.0}, "rr": {"exploration": 1.0, **RR}}.items():
        run_folder(tmp_path / name, **settings)
    together = method_looks(find_runs([tmp_path]))
    assert len({look.colour for look in together.values()}) == 3
    for name in ("plain", "explored", "rr"):
        ((label, look),) = method_looks(find_runs([tmp_path / name])).items()
        assert together[label] == look


def test_methods_of_one_name_are_told_apart(tmp_path, run_folder):
    for k in range(2, 8):
        run_folder(tmp_path / f"k{k}", num_clusters=k)
    looks = method_looks(find_runs([tmp_path]))
    assert len(looks) == len(set(looks.values())) == 6
    assert len({look.colour for look in looks.values()}) == 6


def test_a_method_has_one_colour_in_all_figures_of_a_report(tmp_path, run_folder):
    """Rounds, epsilons and the worst decile: fedavg was in another colour in each."""
    for method, accuracy in (("fedavg", 0.5), ("ifca", 0.7)):
        for epsilon in (2.0, 8.0):
            run_folder(tmp_path / f"{method}-{epsilon}", algorithm=method, epsilon=epsilon, accuracy=accuracy)
    groups = find_runs([tmp_path])
    looks = method_looks(groups)
    colours = {curve.label.split(",")[0]: curve.look.colour for curve in accuracy_panels(groups)[0].curves}
    assert colours == {label: look.colour for label, look in looks.items()}


def test_at_most_seven_lines_of_a_panel_are_named(tmp_path, run_folder, figures):
    for k in range(2, 12):
        run_folder(tmp_path / f"k{k}", num_clusters=k, accuracy=0.5 + k / 100)
    (drawing,) = FIGURES["accuracy"](find_runs([tmp_path]))
    (axes,) = figures[0].axes
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len(named) <= 7 + 2  # the bundle, and chance
    assert "Up to 3 more lines of a panel are faint" in drawing.caption
    assert "num_clusters=11" in drawing.alt  # the best are among those named


def test_every_line_is_named_in_one_legend(demo, figures):
    FIGURES["accuracy"](find_runs([demo]))
    (legend,) = figures[0].legends
    named = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert {"DP-FedAvg", "DP-IFCA", "RR-Cluster (IFCA), B=15"} <= set(named)
    assert len(set(named)) == len(named)


def test_no_text_of_a_figure_is_cut_or_covers_another_title(tmp_path, run_folder, figures):
    settings = {"algorithm": LONG, "num_rounds": 3, "rebalance": "coin"}
    for partition in ("rotation-imbalanced", f"a partition {LONG}"):
        for size in (0, 5, 10):
            name = f"{partition[:4]}-{size}"
            run_folder(tmp_path / name, partition=partition, min_cluster_size=size, **settings)
    run_folder(tmp_path / "other", partition=partition, epsilon=8.5, **settings)
    drawings = draw_figures(find_runs([tmp_path]))
    assert len(figures) == len(drawings) >= 6
    for drawing, figure in zip(drawings, figures, strict=True):
        assert [text for text in _texts(figure) if _outside(text, figure)] == [], drawing.name
        titles = [text.get_window_extent() for text in _texts(figure) if text.get_label() == "title"]
        assert not any(one.overlaps(two) for at, one in enumerate(titles) for two in titles[at + 1 :]), drawing.name


def _texts(figure):
    from matplotlib.text import Text

    shown = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip()]
    return [
        text for text in shown if not re.fullmatch(r"[−\d.]+", text.get_text())
    ]  # ticks beyond the axes are not drawn


def _outside(text, figure):
    box, page = text.get_window_extent(), figure.bbox
    return box.x0 < page.x0 - 1 or box.x1 > page.x1 + 1 or box.y0 < page.y0 - 1 or box.y1 > page.y1 + 1


def test_a_method_that_was_run_without_privacy_alone_is_drawn_beside_the_others(tmp_path, run_folder, figures):
    for epsilon in (2.0, 8.0):
        run_folder(tmp_path / f"{epsilon}", epsilon=epsilon)
    run_folder(tmp_path / "open", algorithm="fedavg", mechanism="none", epsilon=None, accuracy=0.9)
    (drawing,) = FIGURES["privacy-utility"](find_runs([tmp_path]))
    assert "FedAvg 90.0% at epsilon ∞" in drawing.alt


def test_a_method_of_ones_own_has_a_look_too(tmp_path, run_folder):
    run_folder(tmp_path / "a", algorithm="my-method")
    assert isinstance(method_looks(find_runs([tmp_path]))["DP-my-method"], Look)


def test_pages_draw_the_same_looks_as_figures():
    package = resources.files("rrcluster.report")
    page, live = (package.joinpath(name).read_text() for name in ("page.css", "live.css"))
    for place, colour in enumerate(PALETTE):
        assert f"--series-{place}: {colour};" in page
        assert f".series-{place} {{ color: {colour}; }}" in live
