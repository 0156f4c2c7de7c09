from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.graphs.site_choice import SiteChoice
from quietformer.recipe.arm_name import arm_name
from quietformer.recipe.recipe import Recipe, demo_recipe_path, load_recipe
from quietformer.recipe.retrofit_section import RetrofitSection
from quietformer.recipe.sections import AttentionSection, EngineSection
from quietformer.recipe.text_shape import parse_shape
from train.attention.settings import AttentionSettings

MINIMAL = 'name = "tiny"\n[model]\ncheckpoint = "somewhere"\n'


def write(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_shipped_recipe_loads() -> None:
    recipes = sorted(demo_recipe_path().parent.glob("*.toml"))
    assert demo_recipe_path() in recipes
    for path in recipes:
        assert load_recipe(path).name == path.stem


def test_every_shipped_recipe_states_command_cost_and_metric() -> None:
    for path in demo_recipe_path().parent.glob("*.toml"):
        head = path.read_text(encoding="utf-8").split("\n\n", 1)[0]
        assert head.startswith("#")
        for word in ("Command:", "Cost:", "Expected:"):
            assert word in head, f"{path.name} does not state {word}"


def test_a_resolved_recipe_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    recipe = load_recipe(demo_recipe_path(), ["compare.sts.data=some/where.csv"])
    again = load_recipe(write(tmp_path, recipe.to_toml()))
    assert again == recipe


@given(st.text(min_size=1).filter(lambda text: "\x7f" not in text))
def test_any_text_survives_the_resolved_recipe(text: str) -> None:
    recipe = Recipe.model_validate({"name": "tiny", "model": {"checkpoint": text}})
    assert tomllib.loads(recipe.to_toml())["model"]["checkpoint"] == text


def test_a_misspelt_key_is_named_with_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path, MINIMAL + "[retrofit]\nstesp = 3\n")
    with pytest.raises(ValueError, match=r"unknown key 'retrofit\.stesp'; did you mean 'retrofit\.steps'\?"):
        load_recipe(path)


def test_a_misspelt_table_is_named_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key 'retrofti'; did you mean 'retrofit'\?"):
        load_recipe(write(tmp_path, MINIMAL + "[retrofti]\nsteps = 3\n"))


def test_an_unknown_key_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown key 'export\.zzz'; known here are float16, length, lowering, opset"):
        load_recipe(write(tmp_path, MINIMAL + "[export]\nzzz = 3\n"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("[retrofit]\nsteps = -1", r"'retrofit\.steps' is -1; expected greater than or equal to 0"),
        ('[retrofit]\nsteps = "400"', r"'retrofit\.steps' is '400'; expected.* integer"),
        ("[retrofit]\nsteps = true", r"'retrofit\.steps' is true; expected.* integer"),
        ("[retrofit]\nsteps = 10", r"\[retrofit\] warmup_steps is 20, more than the run's 10 steps"),
        ("[retrofit]\npatience = 2\nevaluate_every = 0", r"\[retrofit\] patience has no effect"),
        ("[retrofit]\nweight_bits = 1", r"'retrofit\.weight_bits' is 1; expected greater than or equal to 2"),
        ("[export]\nopset = 16", r"'export\.opset' is 16; expected greater than or equal to 17"),
        ('[quantize]\nweights = "max"', r"'quantize\.weights' is 'max'; expected 'minmax', 'mse' or 'per-channel'"),
        ("[calibrate]\nseeds = [1, 1]", r"\[calibrate\] seeds \[1, 1\] repeat"),
        ("[calibrate]\nseeds = []", r"'calibrate\.seeds' is \[\]"),
        ('[attention]\ngate = "mlp"', r"\[attention\] gate_hidden belongs to gate = 'mlp'"),
        ('[attention]\nsoftmax = "cliped"', r"'attention\.softmax' is 'cliped'"),
        ('[bench]\nshapes = ["0x8"]', r"'bench\.shapes\.0' is '0x8'"),
        ('[engine]\nmax_shape = "1x64"', r"\[engine\] shapes must grow from min to opt to max"),
        ('[quantize]\nbits = "W6A8"', r"bits W6A8 exist in profile 'paper' only; profiles are tensorrt, paper, ort"),
        ('[quantize]\nbits = "W1A8"', "1 bits for weights; expected 2 to 16"),
        ('[quantize.sites.tensorrt]\nbmm = "on"', r"unknown key 'quantize\.sites\.tensorrt\.bmm'; did you mean"),
        (
            '[quantize]\nprofiles = ["paper"]\nbits = "W6A8"\n[quantize.sites.paper]\nbmms = "auto"',
            "bmms is 'auto', and W6A8 is simulated",
        ),
        ('[quantize.sites.tensorrt]\nexclude = ["kind:word"]', "'kind:word' names no kind"),
        ('[quantize]\nprofiles = ["paper"]\n[quantize.sites.ort]\nbmms = "on"', "quantize.sites names 'ort', which"),
        ('[calibrate.methods]\n"kind:context" = "median"', "unknown calibration method 'median'"),
        ('[quantize]\nprofiles = ["fp8", "tensorrt"]', "profile 'fp8' goes beside 'tensorrt' and is not the first"),
        ('[quantize]\nprofiles = ["ort", "fp8"]', "profile 'fp8' goes beside 'tensorrt'"),
        ('[quantize]\nprofiles = ["tensorrt", "fp8"]\n[export]\nopset = 18', "profile 'fp8' needs export.opset 19"),
        ('[quantize]\nprofiles = ["paper"]\n[engine]', r"\[engine\] is built from the 'tensorrt' profile"),
        ("[compare.sts]\nseed = 1", "seed 1 has no effect without a limit"),
        ("[compare.clm]\nlimit = 2\nseed = 1", "seed 1 has no effect on clm"),
        (
            '[quantize]\nprofiles = ["paper"]\n[compare.sts.max_drop]\nort = 0.1',
            r"compare\.sts\.max_drop names 'ort', which quantize\.profiles leaves out",
        ),
        ("[export]\nfloat16 = true\nopset = 18", r"export\.float16 needs export\.opset 19 or newer"),
        ('[export]\nlength = 64\n[bench]\nshapes = ["1x128"]', r"bench\.shapes has 1x128, but export\.length"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(tmp_path: Path, table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        load_recipe(write(tmp_path, MINIMAL + table))
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'model' is missing"):
        load_recipe(write(tmp_path, 'name = "tiny"'))


def test_sites_and_methods_survive_the_resolved_recipe(tmp_path: Path) -> None:
    tables = """
        [calibrate.methods]
        "kind:activation_output" = "mse"
        "*layer.0*" = "percentile:99.9"
        [quantize.sites.tensorrt]
        bmms = "on"
        exclude = ["kind:context", "*layer.1*"]
        """
    recipe = load_recipe(write(tmp_path, MINIMAL + tables))
    assert recipe.quantize.choice("tensorrt") == SiteChoice(bmms="on", exclude=("kind:context", "*layer.1*"))
    assert recipe.quantize.choice("paper") == SiteChoice()
    assert list(recipe.calibrate.methods) == ["kind:activation_output", "*layer.0*"]
    assert load_recipe(write(tmp_path, recipe.to_toml())) == recipe


def test_several_mistakes_are_counted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\(and 1 more\)"):
        load_recipe(write(tmp_path, MINIMAL + "[retrofit]\nsteps = -1\nbatch_size = 0"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"name = ", "is not TOML"), (b"\xff\xfe", "byte 0 is not UTF-8"), (b"PK\x03\x04", "is not TOML")],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_recipe(path)


def test_an_absent_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no recipe at .*absent\.toml"):
        load_recipe(tmp_path / "absent.toml")


def test_overrides_are_toml_values_or_bare_words(tmp_path: Path) -> None:
    recipe = load_recipe(
        write(tmp_path, MINIMAL),
        [
            "retrofit.steps=700",
            "model.checkpoint=other/place",
            'quantize.profiles=["paper"]',
            "compare.sts.max_drop.paper=0.5",
        ],
    )
    assert recipe.retrofit.steps == 700
    assert recipe.model.checkpoint == "other/place"
    assert recipe.quantize.profiles == ("paper",)
    assert recipe.compare.sts is not None
    assert recipe.compare.sts.max_drop == {"paper": 0.5}


@pytest.mark.parametrize("override", ["retrofit.steps", "=3", "retrofit..steps=3", ".=3"])
def test_a_malformed_override_is_refused(tmp_path: Path, override: str) -> None:
    with pytest.raises(ValueError, match="is not key=value"):
        load_recipe(write(tmp_path, MINIMAL), [override])


def test_an_override_below_a_value_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'name' is a value, not a table"):
        load_recipe(write(tmp_path, MINIMAL), ["name.first=3"])


def test_the_attention_table_has_the_fields_and_defaults_of_the_settings() -> None:
    assert AttentionSection().settings() == AttentionSettings()
    assert set(AttentionSection.model_fields) == set(AttentionSettings.__dataclass_fields__)


def test_the_retrofit_table_has_the_fields_defaults_and_choices_of_the_settings() -> None:
    from train.retrofitting.retrofit_settings import ObjectiveName, RetrofitSettings
    from train.simulation.quantization_places import PROFILE_NAMES
    from train.simulation.quantizer import WEIGHT_RANGES

    assert RetrofitSettings.from_dict(RetrofitSection().model_dump()) == RetrofitSettings()
    assert set(RetrofitSection.model_fields) == set(RetrofitSettings.__dataclass_fields__)
    assert get_args(RetrofitSection.model_fields["objective"].annotation) == get_args(ObjectiveName)
    assert get_args(RetrofitSection.model_fields["evaluation_profile"].annotation) == PROFILE_NAMES
    assert get_args(RetrofitSection.model_fields["evaluation_weights"].annotation) == WEIGHT_RANGES


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["attention.prefix=2"], r"attention\.prefix starts at zero, .* give its tokens as retrofit\.prefix"),
        (["attention.patch_norm=true"], r"attention\.patch_norm changes what a checkpoint computes"),
        (["retrofit.rotate=true"], r"needs objective = 'logits'"),
        (["data.images=pictures", "retrofit.prefix=[5]"], r"retrofit\.prefix is made of tokens"),
        (["retrofit.prefix=[-1]"], r"retrofit\.prefix"),
    ],
)
def test_a_retrofit_that_would_change_what_a_checkpoint_computes_has_to_say_so(
    tmp_path: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(write(tmp_path, MINIMAL), overrides)


def test_a_prefix_is_ids_or_a_text_and_what_is_done_names_the_arm(tmp_path: Path) -> None:
    for prefix in ("[5, 6]", "search"):
        recipe = load_recipe(
            write(tmp_path, MINIMAL),
            [
                f"retrofit.prefix={prefix}",
                "retrofit.objective=logits",
                "retrofit.rotate=true",
                "retrofit.equalize=true",
                "retrofit.round_weights=true",
                "retrofit.steps=0",
                "retrofit.warmup_steps=0",
            ],
        )
        assert recipe.retrofit.prefix in ((5, 6), "search")
        assert arm_name(recipe) == "prefix + rotation + scales + rounding"
        assert load_recipe(write(tmp_path, recipe.to_toml())) == recipe


def test_shapes_are_batch_and_length() -> None:
    assert parse_shape("8x128") == (8, 128)
    for text in ("8", "8x", "x8", "8x0", "axb", "-1x8"):
        with pytest.raises(ValueError, match="is not BATCHxLENGTH"):
            parse_shape(text)
    assert EngineSection().opt_shape == "1x128"


def test_reading_a_recipe_imports_no_torch() -> None:
    code = "import sys, quietformer.recipe; assert not {'torch', 'transformers', 'onnx'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
