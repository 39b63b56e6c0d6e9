#!/usr/bin/env python3
"""What a user may ask of the converter beside a type, promise by promise, on small models made here.

    flags.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from promise import *  # noqa: E402,F403


# ---- flags
def lists(tool, text):
    path = tool.folder / "lists.yaml"
    path.write_text(text)
    return "--lists", path


def softmax():
    return model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Softmax", ["a"], ["s"], "sm"), N("MatMul", ["s", "V"], ["y"], "m2")],
                 [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8)])


def check_lists_move_operators(tool):
    """What the file names leaves the built-in list; a name on two lists of the file is an error with both lines."""
    for text in ("allow: [+Softmax]", "{\"allow\": [\"+Softmax\"], \"deny\": [\"-Softmax\"]}", "clear:\n  - +Softmax # moves\n",
                 "allow:\n- MatMul\n- Softmax\n", "infer: [+ai.onnx::Softmax]"):
        assert node(tool(softmax(), *INFER, *lists(tool, text)), "sm").input[0] == "a", text
    for text in ("", "# nothing\n", "allow:\n", "allow: []"):
        assert node(tool(softmax(), *INFER, *lists(tool, text)), "sm").input[0] == "a__mpr_f32", text
    assert not added(tool(softmax(), *INFER, *lists(tool, "allow: [Gemm]"))), "the list is another one now"
    for text, words in (("allow: [+Softmax]\ninfer: []\ndeny:\n  - +Exp\n  - +Softmax\n", ("Softmax", "allow (line 1)", "deny (line 5)")),
                        ("allow:\n - Exp\nclear:\n - +Exp\n", ("Exp", "line 2", "line 4")),
                        ("allow: [+Exp,\n  -Exp]", ("Exp", "lines 1 and 2")), ("allow: [A]\nallow: [B]", ("line 2", "twice")),
                        ("allow: [[A]]", ("line 1",)), ("\nalow: [A]", ("line 2", "alow")), ("allow: A", ("line 1", "list")),
                        ("allow: [+]", ("line 1", "+")), ("allow: [A", ("line",)), ("- A", ("mapping",))):
        said = tool(softmax(), *lists(tool, text), code=1)
        assert all(word in said for word in words), said
    tool(softmax(), *lists(tool, "deny: [+Sofmax]"))
    assert [x["where"].split(":")[-2:] for x in json.loads(tool.report.read_text())["warnings"] if x["kind"] == "unmatched"] == [["1", " Sofmax"]]
    assert "Sofmax" in tool(softmax(), *lists(tool, "deny: [+Sofmax]"), "--strict", code=1)
    tool(softmax(), "--lists", tool.folder, code=5)
    tool(softmax(), "--lists", tool.folder / "none.yaml", code=5)
    assert "bytes" in tool(softmax(), *lists(tool, "allow: [A]\n" + " " * (1 << 20)), code=1)


def check_unknown_size_casts_what_was_taken(tool):
    """In training the smaller side of a weight is cast; where a size is not known, what was taken out of it."""
    for op, more in (("Gather", ["i"]), ("Slice", ["i", "i"])):
        for infos in ([], [v("e", ("k", 8))]):
            m = model([N(op, ["W", *more], ["e"], "take"), N("MatMul", ["e", "V"], ["y"], "mm")], [v("i", ("k",), T.INT64)], [v("y", ("p", "q"))],
                      [w("W", 100, 8), w("V", 8, 8)], infos=infos)
            out = tool(m, *TRAIN)
            assert node(out, "take").input[0] == "W" and node(out, "mm").input[0] == "e__mpr_f16"
            assert tool.why("take") == {"weight-side"}
    m = model([N("Split", ["W", "p"], ["e", "f"], "take"), N("MatMul", ["x", "e"], ["y"], "m1"), N("MatMul", ["x", "f"], ["z"], "m2")],
              [v("x"), v("p", (2,), T.INT64)], [v("y", ("p", "q")), v("z", ("p", "q"))], [w("W", 8, 8)])
    assert node(tool(m, *TRAIN), "take").input[0] == "W__mpr_f16", "all of it is taken: equal"


def check_bfloat16_needs_an_opset(tool):
    """The advice holds."""
    for opset in (7, 9, 11, 12):
        for more in ((), ("--autocast-profile", "torch-cuda"), ("--autocast-profile", "torch-cpu")):
            m = chain(opset=opset, ir=4)
            assert "--opset 13" in tool(m, "--to", "bf16", *more, code=2)
            for mode in (INFER, TRAIN):
                flags = (*mode, "--to", "bf16", "--opset", "13", *more)
                out = tool(m, *flags)
                assert out.opset_import[0].version == 13 and node(out, "m1").input[0] == "x__mpr_bf16"
                first = tool.target
                tool(first, *flags)
                assert tool.target.read_bytes() == first.read_bytes()
                back = tool(first, "--to", "fp32")
                assert mode == INFER or same(back, tool(m, "--opset", "13", "--exclude", "op:.*"))


def check_profiles_of_torch_for_inference(tool):
    """As for training, with the weights in 16 bits."""
    x = rng.standard_normal((3, 8)).astype(np.float32)
    data = tool.folder / "x.npz"
    np.savez(data, x=x)
    for profile in ("torch-cuda", "torch-cpu"):
        for make in (softmax, chain, twice, with_calls):
            flags = (*INFER, "--autocast-profile", profile)
            m = make()
            train = tool(m, *TRAIN, "--autocast-profile", profile)
            side = tool.folder / "side.json"
            out = tool(m, *flags, "--annotations", side, "--verify", data, "--rtol", "0.05")
            first, source = tool.target, tool.source
            assert weight(out, "W").data_type == F16 and not any(n.input[0] in "WV" for n in added(out))
            assert make != softmax or (node(out, "sm").input[0] == "a__mpr_f32") == (profile == "torch-cuda")
            assert [n.name for n in nodes(out) if "__mpr_" not in n.name] == [n.name for n in nodes(train) if "__mpr_" not in n.name]
            tool(first, *flags)
            assert tool.target.read_bytes() == first.read_bytes()
            tool(source, *INFER, "--autocast-profile", side)
            assert tool.target.read_bytes() == first.read_bytes(), "decisions beside the model"
            assert not added(tool(first, "--to", "fp32"))
            out = tool(source, *flags, "--io", "all=fp16", "--external", "always")
            assert out.graph.input[0].type.tensor_type.elem_type == F16
    m = softmax()
    big = numpy_helper.to_array(weight(m, "V")).copy()
    big[0, 0] = 7e4
    weight(m, "V").CopyFrom(numpy_helper.from_array(big, "V"))
    assert weight(tool(m, *INFER, "--autocast-profile", "torch-cuda"), "V").data_type == T.FLOAT


def check_io(tool):
    out = tool(chain(), *INFER, "--io", "x=fp16")
    assert out.graph.input[0].type.tensor_type.elem_type == F16 and out.graph.output[0].type.tensor_type.elem_type == T.FLOAT
    assert not any(n.input[0] == "x" for n in added(out))
    out = tool(chain(), *INFER, "--io", "all=fp16", "--io", "x=keep")
    assert out.graph.input[0].type.tensor_type.elem_type == T.FLOAT and out.graph.output[0].type.tensor_type.elem_type == F16
    base = tool(chain(), "--passes", "none")
    out = tool(chain(), *TRAIN, "--io", "all=bf16", "--to", "bf16")
    assert out.graph.input[0].type.tensor_type.elem_type == BF16
    for bad in ("x", "x=fp8", "nobody=fp16", "=fp16", "a=fp16", "W=fp16"):
        tool(chain(), "--io", bad, code=1)
    assert base.graph.input[0].type.tensor_type.elem_type == T.FLOAT


def check_passes_none(tool):
    m = chain()
    out = tool(m, "--passes", "none")
    assert same(m, out)
    tool(m, "--passes", "none", "--opset", "18", code=1)
    tool(m, "--passes", "none", "--inline", code=1)
    tool(m, "--passes", "some", code=1)


def check_drop_rounding_needs_the_way_back(tool):
    tool(chain(), "--drop-rounding", code=1)
    tool(chain(), "--drop-rounding", "--to", "fp16", code=1)


def check_calls_of_functions(tool):
    m = with_calls()
    out = tool(m, *INFER, "--inline")
    assert not out.functions and not nodes(out, "Scale")
    assert "first/mul" in {n.name for n in nodes(out)} and "second/mul" in {n.name for n in nodes(out)}
    x = rng.standard_normal((2, 8)).astype(np.float32)
    assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=2e-2, atol=2e-2)
    plain = tool(m, "--inline", "--exclude", "op:.*")
    assert np.array_equal(run(m, x=x)[0], run(plain, x=x)[0]), "taking apart changes no number"
    tool(m, *TRAIN, "--inline")
    first = tool.target
    tool(first, *TRAIN, "--inline")
    assert first.read_bytes() == tool.target.read_bytes()
    assert same(tool(first, "--to", "fp32"), plain)


def check_units_are_called_as_onnx_calls_them(tool):
    for opset, names in ((13, {"T"}), (14, {"T", "U"}), (15, {"T", "T1", "T2"})):
        m = model([N("Conv", ["x", "K"], ["a"], "cv"), N("BatchNormalization", ["a", "s", "b", "m", "q"], ["bn"], "norm"),
                   N("Conv", ["bn", "L"], ["y"], "last")], [v("x", (1, 3, 5, 5))], [v("y", (1, 4, 5, 5))],
                  [w("K", 4, 3, 1, 1), w("L", 4, 4, 1, 1), *(c(k, [1, 2, 3, 4]) for k in "sbmq")], opset=opset)
        tool(m, *INFER)
        assert set(next(n for n in json.loads(tool.report.read_text())["nodes"] if n["path"] == "norm")["units"]) == names


def check_slow_kernels_are_told(tool):
    def told():
        return {(x["where"], x["count"]) for x in json.loads(tool.report.read_text())["warnings"] if x["kind"] == "kernel"}
    tool(chain(), *INFER)
    assert not told()
    m = model([N("GRU", ["x", "V", "R"], ["", "h"], "gru", hidden_size=4), N("MatMul", ["h", "U"], ["y"], "mm")],
              [v("x", ("t", 1, 8))], [v("y", (1, 1, 8))], [w("V", 1, 12, 8), w("R", 1, 12, 4), w("U", 4, 8)])
    tool(m, *INFER)
    assert told() == {("GRU", 1)}
    tool(m, *INFER, "--exclude", "op:GRU")
    assert not told()


def check_nodes_that_only_the_file_knows(tool):
    """What a node that the library cannot run makes is not guessed: readers of whole numbers are no fault of the model."""
    table = w("E", 50, 8)
    custom = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Tokens", ["a"], ["ids"], domain="com.x"), N("Gather", ["E", "ids"], ["g"]),
                    N("MatMul", ["g", "W"], ["y"], "m2")], [v("x")], [v("y", None)], [w("W", 8, 8), table],
                   imports=[helper.make_opsetid("com.x", 1)])
    assert node(tool(custom, *INFER, check=False), "mm").input[0] == "x__mpr_f16"
    boxes = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("NonMaxSuppression", ["boxes", "scores", "most"], ["ids"]),
                   N("Gather", ["a", "ids"], ["g"]), N("ReduceMax", ["g"], ["y"], keepdims=0)],
                  [v("x"), v("boxes", (1, 5, 4)), v("scores", (1, 2, 5))], [v("y", ())], [w("W", 8, 8), c("most", [3], np.int64)])
    dynamic = model([N("DynamicQuantizeLinear", ["x"], ["q", "s", "z"], "quantise"), N("DequantizeLinear", ["q", "s", "z"], ["d"], "back"),
                     N("MatMul", ["d", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    for m in (boxes, dynamic):
        assert node(tool(m, *INFER), "mm").input[1] == "W"
        settled(tool, m)


def check_quantisation_steps_stay(tool):
    """From opset 23 the step has a type of its own; a user who includes the operator means its data."""
    nodes_ = [N("MatMul", ["x", "W"], ["h"], "mm"), N("QuantizeLinear", ["h", "step", "zero"], ["q"], "quantise"),
              N("DequantizeLinear", ["q", "step", "zero"], ["d"], "back"), N("MatMul", ["d", "V"], ["y"], "m2")]
    m = model(nodes_, [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8), c("step", 0.05), c("zero", 0, np.int8)], opset=23, ir=11)
    for op in ("QuantizeLinear", "QuantizeLinear|DequantizeLinear"):
        out = tool(m, *INFER, "--include", f"op:{op}")
        assert list(node(out, "quantise").input)[:2] == ["h", "step"], node(out, "quantise").input
        assert weight(out, "step").data_type == T.FLOAT
        settled(tool, m, "--include", f"op:{op}")


def check_functions_painted_per_call(tool):
    """Calls that are painted alike share a copy of the function, the original stays for the others."""
    for ir in (8, 10):
        for to in ("fp16", "bf16"):
            m = twice(ir=ir)
            out, _ = settled(tool, m, "--to", to)
            low = F16 if to == "fp16" else BF16
            assert list(out.functions)[:2] == list(m.functions), "the functions stay, copies come behind them"
            ending = "__mpr_f16" if to == "fp16" else "__mpr_bf16"
            assert [f.name for f in out.functions][2:] == ["Thrice" + ending]
            assert [n.op_type for n in out.graph.node if n.domain == "my"] == ["Twice", "Twice", "Thrice" + ending, "Twice"]
            x = rng.standard_normal((2, 8)).astype(np.float32)
            if to == "fp16":
                assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=3e-2, atol=3e-2)
            assert json.loads(tool.report.read_text())["totals"]["nodes"]["float16" if to == "fp16" else "bfloat16"] >= 8
    m = twice()
    out, _ = settled(tool, m, "--exclude", "node:two")
    assert node(out, "two").input[0] == "b__mpr_f32" and not tool.why("two:Twice/mm") - {"user-name"}
    out, _ = settled(tool, m, "--exclude", "scope:two:Twice|.*/in:Twice")
    assert sorted(f.name for f in out.functions) == ["Thrice", "Thrice__mpr_f16", "Twice", "Twice__mpr_f16"]
    out, _ = settled(tool, m, "--exclude", "node:mm")
    assert [f.name for f in out.functions] == ["Twice", "Thrice"], "nothing in 16 bits is left"
    out, _ = settled(tool, m, "--exclude", "op:Relu")
    assert [n.op_type for n in out.graph.node if n.domain == "my"] == ["Twice__mpr_f16"] * 2 + ["Thrice__mpr_f16", "Twice__mpr_f16_1"]
    (tool.folder / "l.json").write_text('{"deny": ["+my::Thrice"]}')
    out = tool(m, *TRAIN, "--lists", tool.folder / "l.json")
    assert node(out, "three").op_type == "Thrice" and node(out, "four").input[0] == "e__mpr_f16"
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == F16 or weight(out, "W__mpr_f16") is not None
    again = tool.target
    tool(again, *INFER)
    assert tool.target.read_bytes() == again.read_bytes()
    assert {f.name for f in tool(again, "--to", "fp32").functions} == {"Twice", "Thrice"}
    settled(tool, with_calls())


def check_calls_across_opsets(tool):
    out = tool(with_calls(18, 17), *INFER, "--inline", check=False)
    assert not out.functions
    assert "needs opset 18" in tool(with_calls(17, 18), *INFER, "--inline", code=2)
    out = tool(with_calls(17, 18), *INFER, "--inline", "--opset", "18")
    assert out.opset_import[0].version == 18 and not out.functions
    out = tool(with_calls(17, 17), *INFER, "--opset", "21")
    assert out.functions[0].opset_import[0].version == 21


def check_external_data(tool):
    m = model([N("MatMul", ["x", "W"], ["y"], "mm")], [v("x", ("n", 64))], [v("y", ("n", 64))], [w("W", 64, 64), w("small", 2)])
    out = tool(m, *TRAIN, "--external", "always")
    big, data = weight(out, "W"), Path(f"{tool.target}.data")
    where = {e.key: e.value for e in big.external_data}
    assert where["location"] == data.name and int(where["offset"]) % 4096 == 0 and data.stat().st_size == 64 * 64 * 4
    assert weight(out, "small").data_location == T.DEFAULT
    external, before = tool.target, data.read_bytes()
    out = tool(external, *TRAIN)
    assert weight(out, "W").data_location == T.EXTERNAL, "what lay outside stays outside"
    out = tool(external, *INFER)
    where = {e.key: e.value for e in weight(out, "W").external_data}
    assert where["location"] == f"{tool.target.name}.data" and Path(f"{tool.target}.data").stat().st_size == 64 * 64 * 2
    out = tool(external, *INFER, "--external", "never")
    assert weight(out, "W").data_location == T.DEFAULT and len(weight(out, "W").raw_data) == 64 * 64 * 2
    assert not Path(f"{tool.target}.data").exists() and data.read_bytes() == before
    m.graph.initializer[0].ClearField("raw_data")
    m.graph.initializer[0].float_data.extend(numpy_helper.to_array(w("W", 64, 64)).reshape(-1).tolist())
    out = tool(m, *TRAIN, "--external", "always")
    assert weight(out, "W").data_location == T.EXTERNAL and not weight(out, "W").float_data


def check_the_input_is_never_written(tool):
    path = tool.folder / "self.onnx"
    onnx.save(chain(), str(path))
    link = tool.folder / "link.onnx"
    os.link(path, link)
    before = path.read_bytes()
    for target in (path, link):
        done = subprocess.run([tool.path, path, "-o", target, *INFER], capture_output=True)
        assert done.returncode == 1 and path.read_bytes() == before


def check_nothing_is_left_behind(tool):
    folder = tool.folder / "full"
    folder.mkdir()
    target = folder / "out.onnx"
    target.write_bytes(b"as it was")
    bad = tool.folder / "bad.onnx"
    bad.write_bytes(b"no model")
    for flags, source in (((), bad), (("--include", "op:(["), None), (("--io", "q=fp16"), None)):
        if source is None:
            source = tool.folder / "good.onnx"
            onnx.save(chain(), str(source))
        done = subprocess.run([tool.path, source, "-o", target, *flags], capture_output=True)
        assert done.returncode in (1, 2) and target.read_bytes() == b"as it was"
        assert [p.name for p in folder.iterdir()] == ["out.onnx"]
    done = subprocess.run([tool.path, source, "-o", tool.folder / "no" / "such" / "out.onnx"], capture_output=True)
    assert done.returncode == 5


if __name__ == "__main__":
    main(globals())
