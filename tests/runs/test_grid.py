from functools import partial
from pathlib import Path

import pytest

from rrcluster import registry
from rrcluster.errors import ConfigError
from rrcluster.runs.sweep import jobs, read_grid


def grid(**settings):
    return read_grid(settings, source="grid.yaml", out=Path("here"))


def test_every_combination_by_hand():
    found = grid(epsilon=2, update_clip=[0.1, 0.2], min_cluster_size=[0, 8])
    assert [dict(cell.values) for cell in found.cells] == [
        {"update_clip": 0.1, "min_cluster_size": 0},
        {"update_clip": 0.1, "min_cluster_size": 8},
        {"update_clip": 0.2, "min_cluster_size": 0},
        {"update_clip": 0.2, "min_cluster_size": 8},
    ]
    assert all(cell.settings["epsilon"] == 2 for cell in found.cells)
    assert found.spelled() == ("update_clip: 0.1, 0.2", "min_cluster_size: 0, 8")


def test_numbers_of_yaml_without_a_dot_are_numbers():
    assert grid(delta=["1e-4", 0.001]).axes["delta"] == (1e-4, 1e-3)


def test_without_lists_there_is_one_combination():
    (cell,) = grid(epsilon=3).cells
    assert cell.values == {}


@pytest.mark.parametrize("settings", [{"seeds": [3, 4]}, {"seed": [3, 4]}])
def test_seeds_are_not_settings(settings):
    found = grid(update_clip=[0.1, 0.2], **settings)
    assert found.seeds == (3, 4)
    assert list(found.axes) == ["update_clip"]
    todo = jobs(found)
    assert [job.settings["seed"] for job in todo] == [3, 4, 3, 4]
    assert todo[1].folder == Path("here/1-update_clip=0.1/seed-4")
    assert todo[1].config.output.out == todo[1].folder


def test_one_seed_needs_no_folder_of_its_own():
    (job, _) = jobs(grid(update_clip=[0.1, 0.2], seed=5, seeds=[]))
    assert job.folder == Path("here/1-update_clip=0.1")
    assert job.config.output.seed == 5


def test_folder_names_are_fit_for_a_file_system_and_never_alike(request):
    models = ["a/" + "b" * 150, "a_" + "b" * 150]
    for name in models:
        registry.register("model", name, object())
        request.addfinalizer(partial(registry.MODELS.unregister, name))
    found = grid(model=models, size_floor=[None, 3], local_epochs=[1, 2])
    names = [cell.name for cell in found.cells]
    assert len(set(names)) == 8
    assert all("/" not in name and len(name) <= 120 for name in names)


def test_the_file_may_say_where():
    assert grid(out="there", update_clip=[0.1, 0.2]).out == Path("there")


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"epsilonn": [1, 2]}, "grid.yaml: setting 'epsilonn' is not known; did you mean 'epsilon'"),
        ({"epsilon": [2, "much"]}, "epsilon = 'much' should be number or empty"),
        ({"epsilon": []}, "epsilon is an empty list"),
        ({"update_clip": [0.1, 0.1]}, "names a value twice"),
        ({"out": ["a", "b"]}, "out takes one value for the whole sweep"),
        ({"data_folder": ["/a", "/b"]}, "data_folder takes one value for the whole sweep"),
        ({"seed": 1, "seeds": [2, 3]}, "both seed and seeds"),
        ({"tensorboard": True}, "writes no TensorBoard events"),
        ({"seeds": 3}, "a list of whole numbers"),
        ({"seeds": ["x"]}, "seed = 'x' should be whole number"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_before_anything_runs(settings, text):
    with pytest.raises(ConfigError, match=text):
        grid(**settings)
