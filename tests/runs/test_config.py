import dataclasses

import pytest
import yaml

from rrcluster.cli.run_command import read_command
from rrcluster.errors import ConfigError
from rrcluster.runs.config import RunConfig, from_flat
from rrcluster.settings import FIELDS, REMOVED, DataSettings


def test_every_setting_has_one_name_and_one_line_of_help():
    sections = [getattr(RunConfig(), field.name) for field in dataclasses.fields(RunConfig)]
    names = [field.name for section in sections for field in dataclasses.fields(section)]
    assert len(names) == len(set(names)) == len(FIELDS)


def test_a_config_survives_its_yaml():
    config = from_flat({"epsilon": 2, "seeds": [0, 1], "out": "somewhere", "min_cluster_size": 8, "size_floor": 3})
    assert from_flat(yaml.safe_load(yaml.safe_dump(config.flat()))) == config


def test_defaults_are_the_ones_documented():
    config = RunConfig().resolved()
    assert config.data.num_clients == 1000
    assert config.method.num_clusters == 4
    assert config.privacy.sample_rate == 0.1
    assert config.privacy.num_rounds == 100
    assert config.privacy.delta == 1e-4
    assert config.privacy.mechanism == "joint"
    assert config.privacy.target_epsilon == 4.0
    assert config.privacy.count_weight == 0.25


def test_yaml_numbers_without_a_dot_are_numbers():
    assert from_flat(yaml.safe_load("delta: 1e-5")).privacy.delta == 1e-5


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"epsilonn": 2}, "'epsilonn' is not known; did you mean 'epsilon'"),
        ({"zzz": 2}, "see `rrcluster run --help-all`"),
        ({"epsilon": "much"}, "epsilon = 'much' should be number or empty"),
        ({"num_rounds": 2.5}, "num_rounds = 2.5 should be whole number"),
        ({"num_rounds": True}, "should be whole number"),
        ({"mechanism": "laplace"}, "one of joint, identifier, none"),
        ({"seeds": 3}, "a list of whole numbers"),
        ({"seeds": [1, 1]}, "names a seed twice"),
        ({"tensorboard": "yes"}, "true or false"),
        ({"sample_rate": 0}, "sample_rate = 0"),
        ({"delta": 0}, "delta = 0"),
        ({"epsilon": -1}, "epsilon = -1"),
        ({"epsilon": float("nan")}, "epsilon = nan must be a number"),
        ({"epsilon": float("inf")}, "epsilon = inf"),
        ({"num_clients": 0}, "num_clients = 0"),
        ({"local_lr": 0}, "local_lr = 0"),
        ({"average_last": 1.5}, "average_last"),
        ({"exploration": -1}, "exploration = -1"),
        ({7: 1}, "setting 7 is not known"),
        *(({name: "auto"}, f"'{name}' is gone: {way_out}") for name, way_out in REMOVED.items()),
        ({"algorithm": "r-dpcfl"}, "algorithm = 'r-dpcfl' is not known; choose one of ifca, "),
        ({"identifier": "projection"}, "one of gaussian, kary"),
        ({"identifier_share": "auto"}, "identifier_share = 'auto' should be number"),
    ],
)
def test_what_is_wrong_is_named(settings, text):
    with pytest.raises(ConfigError, match=text):
        from_flat(settings)


def test_labels_tell_runs_apart():
    labels = {
        from_flat(settings).label
        for settings in (
            {},
            {"epsilon": 2},
            {"min_cluster_size": 5},
            {"algorithm": "fedavg"},
            {"noise_multiplier": 2.0},
        )
    }
    assert len(labels) == 5


@pytest.mark.parametrize(
    ("data", "expected"),
    [("fashion-mini", "edges"), ("emnist", "edges-coarse"), ("shakespeare", "lstm"), ("synthetic", "linear")],
)
def test_the_usual_network_is_written_down_by_name(data, expected):
    config = from_flat({"data": data})
    assert config.method.model == config.flat()["model"] == expected
    assert from_flat({"data": data, "model": "mlp"}).method.model == "mlp"
    assert from_flat(config.flat()) == config
    assert RunConfig(data=DataSettings(data=data)).resolved() == config


def test_a_flag_decides_on_the_network_of_a_file_that_names_none(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("data: fashion-mini\n")
    assert read_command([str(file), "--data", "synthetic"]).config.method.model == "linear"
    assert read_command([str(file)]).config.method.model == "edges"
    assert read_command(["--data", "emnist"]).config.method.model == "edges-coarse"
    assert read_command(["--model", "mlp"]).config.method.model == "mlp"
