"""Sessions, programs and exports."""

import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import ptero
import pytest
from conftest import ROOT
from ptero.drawing import drawing


def test_a_session_gives_the_tokens_of_a_text(model: ptero.Model) -> None:
    prompt = model.encode("The king")
    text = model.generate("The king", temperature=0, max_tokens=8)
    session = model.session()
    tokens = [session.prefill(prompt)]
    while len(tokens) < 8:
        tokens.append(session.decode(tokens[-1]))
    assert tokens == text.tokens
    assert session.tokens == prompt + tokens[:-1] and session.position == len(prompt) + 7
    assert session.room == model.context - session.position
    drawn = model.generate("The king", temperature=1.0, top_k=0, top_p=1.0, seed=5, max_tokens=1).tokens
    session.reset()
    assert [session.prefill(prompt, temperature=1.0, seed=5)] == drawn


def test_sessions_fork_and_refuse_to_go_where_they_cannot(model: ptero.Model) -> None:
    session = model.session()
    token = session.prefill(model.encode("The king"), logprobs=3)
    assert session.logprobs is not None and session.logprobs[1][0] == (token, session.logprobs[0])
    fork = session.fork()
    assert fork.decode(token) == session.decode(token)
    with pytest.raises(ptero.errors.CallError, match="cannot go back"):
        session.rewind(1_000_000)
    session.rewind(0)
    assert session.tokens == [] and fork.position > 0
    with pytest.raises(ptero.errors.PromptError, match="outside the vocabulary"):
        session.prefill([model.vocabulary])
    with pytest.raises(TypeError, match="setting of texts"):
        session.prefill([1], max_tokens=3)
    with pytest.raises(ptero.errors.CallError, match="before the first call"):
        _ = session.logits


def test_a_program_that_samples_has_the_logits_of_its_last_call(model: ptero.Model) -> None:
    session = model.session()
    token = session.prefill(model.encode("The king"), temperature=0.7, seed=3, logprobs=5)
    logits = session.logits
    assert logits.shape == (model.vocabulary,) and logits.dtype == np.float32
    assert session.logprobs is not None
    of_token, likeliest = session.logprobs
    exact = logits.astype(np.float64)
    shares = exact - exact.max() - np.log(np.exp(exact - exact.max()).sum())
    assert abs(shares[token] - of_token) < 1e-4
    for other, share in likeliest:
        assert abs(shares[other] - share) < 1e-4
    assert int(logits.argmax()) == likeliest[0][0]

    fork = session.fork()
    assert np.array_equal(fork.logits, logits), "a copy has them, too"
    session.decode(token)
    assert not np.array_equal(session.logits, logits) and np.array_equal(fork.logits, logits)
    fork.decode(token, temperature=2.0, repetition_penalty=1.5, seed=9)
    assert np.array_equal(fork.logits, session.logits), "settings do not change what the model computed"
    for forget in (lambda: session.rewind(0), fork.reset):
        forget()
    for empty in (session, fork):
        with pytest.raises(ptero.errors.CallError, match="before the first call"):
            _ = empty.logits


def test_logits_are_those_of_a_program_that_returns_them(tmp_path: Path, logits_program: Path) -> None:
    returned = ptero.Model(logits_program, full_sampler=False).session()
    for sample in (None, "plain", "full"):
        path = tmp_path / f"{sample}.pte"
        ptero.export(ROOT / "crates/export/tests/tiny/llama", path, dtype="f32", quantize="none", sample=sample, progress=False)
        sampled = ptero.Model(path).session()
        returned.reset()
        assert sampled.prefill([1, 2, 3]) == returned.prefill([1, 2, 3])
        assert np.array_equal(sampled.logits, returned.logits), "the same bits"
        sampled.decode(7)
        returned.decode(7)
        assert np.array_equal(sampled.logits, returned.logits)
    plain = ptero.Model(tmp_path / "plain.pte", full_sampler=False).session()
    plain.prefill([1, 2, 3])
    with pytest.raises(ptero.errors.CallError, match="full sampling head"):
        _ = plain.logits


def test_logits_are_an_array_and_rewinding_repeats_them(logits_program: Path) -> None:
    model = ptero.Model(logits_program, full_sampler=False)
    session = model.session()
    with pytest.raises(ptero.errors.CallError, match="before the first call"):
        _ = session.logits
    token = session.prefill([1, 2, 3])
    first = session.logits
    assert first.shape == (model.vocabulary,) and first.dtype == np.float32
    assert int(first.argmax()) == token
    session.decode(token)
    assert not np.array_equal(session.logits, first)
    session.rewind(2)
    session.decode(3)
    assert np.array_equal(session.logits, first), "the same bits"


def test_a_method_runs_on_arrays_by_order_and_by_name(logits_program: Path) -> None:
    forward = ptero.Program(logits_program).method("forward")
    tokens, positions = np.array([[1, 2, 3]]), np.arange(3)
    names = [info.name for info in forward.inputs]
    assert [info.dtype for info in forward.inputs] == ["i64", "i64"]
    (ordered,) = forward.run(tokens, positions)
    (named,) = forward.run(**dict(zip(names, (tokens, positions), strict=True)))  # type: ignore[arg-type]
    assert np.array_equal(ordered, named)
    session = ptero.Model(logits_program, full_sampler=False).session()
    session.prefill([1, 2, 3])
    assert np.array_equal(ordered.reshape(-1).astype(np.float32), session.logits)


def test_calls_that_do_not_fit_are_refused(logits_program: Path) -> None:
    program = ptero.Program(logits_program)
    forward = program.method()
    tokens, positions = np.array([[1, 2]]), np.arange(2)
    for arguments, named, message in [
        ((tokens,), {}, "inputs are missing"),
        ((tokens, positions, 1), {}, "3 inputs were given"),
        ((tokens, positions), {"nothing": 1}, "no input `nothing`"),
        ((tokens, positions.astype(np.float32)), {}, "has type float32"),
        ((tokens[0], positions), {}, "axes"),
    ]:
        with pytest.raises(ptero.errors.CallError, match=message):
            forward.run(*arguments, **named)
    with pytest.raises(ptero.errors.CallError, match="no method `backward`"):
        program.method("backward")
    assert len(forward.run(tokens, positions)) == 1, "a call that was refused changes nothing"


def test_bf16_is_exchanged_as_float32() -> None:
    from ptero.program import TensorInfo, _array, _tensor

    values = np.array([1.0, -2.5, 3.14159265, 1e-40, np.inf, np.nan], dtype=np.float32)
    dtype, shape, data = _tensor(values, TensorInfo("x", "bf16", [6]))
    back = _array(dtype, shape, data)
    assert np.array_equal(back[[0, 1, 4]], values[[0, 1, 4]]) and np.isnan(back[5])
    assert back[2] == np.float32(3.140625), "to the nearest"


def test_a_program_shows_its_graph() -> None:
    program = ptero.Program()
    html = program._repr_html_()
    nodes = sum(len(chain) for chain in program.graph())
    assert f"{nodes} nodes" in html and "RMSNorm" in html
    assert "forward" in repr(program)
    pictures = [ElementTree.fromstring(picture) for picture in re.findall(r"<svg.*?</svg>", html)]
    assert len(pictures) == len(program.graph()) > 1
    boxes = [len(picture.findall(".//{*}rect")) for picture in pictures]
    assert boxes == [len(chain) for chain in program.graph()], "every node is drawn"


def test_a_drawing_has_an_arc_for_each_result_that_is_read() -> None:
    chain = [
        ("Take", "t3 = Take(x=t1:tokens, index=t2:<script>, axis=0)"),
        ("Split", "t4, v0 = Split(x=t3, names=[\"a = b\"])"),
        ("Add", "t3 = Add(a=t4, b=t3, c=v0, d=t4)"),
        ("If", "If(cond=t3, then_chain_idx=chain 1)"),
    ]
    picture = ElementTree.fromstring(drawing(chain))
    arcs = picture.findall(".//{*}path")
    assert len(arcs) == 4, "t3 in rows 1 and 2, t4, and the new t3; integers have none"
    texts = [text.text or "" for text in picture.findall(".//{*}text")]
    assert texts[::2] == ["Take", "Split", "Add", "If"]
    titles = [title.text for title in picture.findall(".//{*}title")]
    assert titles == [text for _, text in chain], "the text of each node is under the pointer"
    assert "<script>" not in drawing(chain)
    many = drawing([("Add", "t1 = Add(a=t1, b=t1)")] * 1100)
    assert many.count("<rect") == 1000 and "100 more" in many


@pytest.mark.parametrize("sample", [None, "plain", "full"])
def test_exports_open_again(tmp_path: Path, sample: str | None) -> None:
    path = tmp_path / "tiny.pte"
    events: list[str] = []
    size = ptero.export(
        ROOT / "crates/export/tests/tiny/llama",
        path,
        quantize="int4",
        sample=sample,
        max_context=64,
        progress=lambda kind, text, count: events.append(kind),
    )
    assert size == path.stat().st_size and "begin" in events and "end" in events
    model = ptero.Model(path, full_sampler=False)
    assert (model.samples_itself, model.context) == (sample is not None, 64)
    assert len(ptero.Model(path).generate([1, 2, 3], seed=1, max_tokens=4, ignore_eos=True).tokens) == 4


def test_exports_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    tiny, out = ROOT / "crates/export/tests/tiny/llama", tmp_path / "out.pte"
    for settings in ({"quantize": "int3"}, {"sample": "best"}, {"group_size": 7}, {"dtype": "f8"}, {"embed": "x"}):
        with pytest.raises(ptero.errors.SettingError):
            ptero.export(tiny, out, progress=False, **settings)  # type: ignore[arg-type]
    with pytest.raises(ptero.Error):
        ptero.export(tmp_path / "nothing", out, progress=False)
    with pytest.raises(ptero.Error):
        ptero.export(tiny, tiny / "model.safetensors", progress=False)
    assert not out.exists() and (tiny / "model.safetensors").stat().st_size > 0
