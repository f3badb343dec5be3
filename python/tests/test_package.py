"""The package as a whole: one table of settings, documentation that is there."""

import inspect

import ptero
from conftest import ROOT
from ptero import _ptero


def test_the_settings_are_those_of_the_extension_and_of_the_sampler() -> None:
    names = [name for name, _ in _ptero.settings()]
    assert names == list(ptero.Settings.__annotations__), "the type lists what the extension reads, in its order"
    assert all(help for _, help in _ptero.settings())
    # The sampler's own table, but for what the engine fills in itself.
    table = (ROOT / "crates/sampling/src/inputs.rs").read_text().split("pub const SAMPLER_INPUTS")[1].split("];")[0]
    inputs = {line.split('"')[1] for line in table.splitlines() if line.strip().startswith("name:")}
    biases = {"logit_bias_tokens", "logit_bias_values"}
    assert inputs - biases - {"prompt_end", "token_mask"} <= set(names) and "logit_bias" in names


def test_the_documentation_lists_every_setting() -> None:
    page = (ROOT / "docs/PYTHON.md").read_text()
    assert [name for name, _ in _ptero.settings() if f"`{name}`" not in page] == []


def test_everything_public_has_a_description() -> None:
    for name in ptero.__all__:
        item = getattr(ptero, name)
        if inspect.isclass(item) or inspect.isfunction(item):
            assert item.__doc__, name
        if inspect.isclass(item):
            members = [member for member in vars(item) if not member.startswith("_") and member not in dir(dict)]
            undocumented = [
                member
                for member in members
                if isinstance(vars(item)[member], property) or inspect.isfunction(vars(item)[member])
                if not inspect.getdoc(getattr(item, member))
            ]
            assert undocumented == [], name


def test_devices_are_listed() -> None:
    devices = ptero.devices()
    assert [name for name, _, _ in devices][0] == "cpu" and all(words for _, _, words in devices)
