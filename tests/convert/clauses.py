#!/usr/bin/env python3
"""What the converter promises about the structure of its files, promise by promise, on small models made here.

    clauses.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from promise import *  # noqa: E402,F403


# ---- rewriting
def check_one_cast_for_all_readers(tool):
    m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("MatMul", ["x", "V"], ["b"], "m2"), N("Add", ["a", "b"], ["y"], "s")],
              [v("x")], [v("y")], [w("W", 8, 8), w("V", 8, 8)])
    out = tool(m, *TRAIN)
    assert sum(n.input[0] == "x" for n in added(out)) == 1
    assert out.graph.node[0].op_type == "Cast" and {n.input[0] for n in added(out)} >= {"x", "W", "V"}


def check_cast_stands_behind_its_producer(tool):
    m = model([N("Softmax", ["x"], ["s"], "sm"), N("Neg", ["x"], ["n"], "neg"), N("MatMul", ["s", "W"], ["y"], "mm"),
               N("Exp", ["n"], ["z"], "e")], [v("x")], [v("y"), v("z")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    order = [n.name for n in out.graph.node]
    assert order.index("s__mpr_f16") == order.index("sm") + 1, order
    assert [n for n in order if "__mpr" not in n] == ["sm", "neg", "mm", "e"], "the order has changed"


def check_cast_stands_in_the_scope_of_its_reader(tool):
    body = helper.make_graph([N("MatMul", ["x", "W"], ["t"], "inner")], "then", [], [v("t")])
    other = helper.make_graph([N("Identity", ["x"], ["u"], "same")], "else", [], [v("u")])
    m = model([N("If", ["k"], ["y"], "branch", then_branch=body, else_branch=other)], [v("x"), v("k", (), T.BOOL)], [v("y")],
              [w("W", 8, 8)])
    out = tool(m, *TRAIN)
    then = next(a.g for a in node(out, "branch").attribute if a.name == "then_branch")
    assert {n.input[0] for n in then.node if n.op_type == "Cast" and "__mpr" in n.name} >= {"W"}
    assert not any(n.input[0] == "W" for n in out.graph.node if n.op_type == "Cast")


def check_new_names_are_free_in_all_scopes(tool):
    m = chain()
    m.graph.node.append(N("Identity", ["y"], ["x__mpr_f16"], "W__mpr_f16"))
    m.graph.output.append(v("x__mpr_f16"))
    out = tool(m, *TRAIN)
    assert {n.output[0] for n in added(out)} >= {"x__mpr_f16_1", "W__mpr_f16_1"}
    assert all(n.name in (n.input[0], n.output[0]) for n in added(out))


def check_unnamed_nodes_stay_unnamed(tool):
    m = chain()
    for n in m.graph.node:
        n.name = ""
    assert sum(not n.name for n in tool(m, *TRAIN).graph.node) == 3


def check_low_output_has_a_public_cast(tool):
    m = chain()
    m.graph.output.append(v("r"))
    out = tool(m, *INFER)
    act, m2, m1 = node(out, "act"), node(out, "m2"), node(out, "m1")
    assert act.output[0] == "r__mpr_f16" and m2.input[0] == "r__mpr_f16", "the low reader has a detour"
    public = [n for n in added(out) if n.output[0] == "r"]
    assert len(public) == 1 and public[0].input[0] == "r__mpr_f16" and public[0].name == "r__mpr_f16"
    assert [o.name for o in out.graph.output] == ["y", "r"] and m1.output[0] == "a"


def check_output_that_is_input_or_weight_stays(tool):
    m = chain()
    m.graph.output.extend([v("x"), v("W", (8, 8))])
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and [o.name for o in out.graph.output] == ["y", "x", "W"]


def check_training_keeps_weights(tool):
    m = chain()
    out = tool(m, *TRAIN)
    assert all(same(weight(m, n), weight(out, n)) for n in "WV")
    assert [n.input[0] for n in added(out)].count("W") == 1


def check_inference_narrows_weights(tool):
    m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Softmax", ["W"], ["s"], "sm"), N("MatMul", ["a", "V"], ["y"], "m2")],
              [v("x")], [v("y"), v("s", (8, 8))], [w("W", 8, 8), w("V", 8, 8)])
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and weight(out, "W__mpr_f16").data_type == F16, "mixed readers: a copy"
    assert weight(out, "V").data_type == F16 and not weight(out, "V__mpr_f16"), "low readers only: in place"
    expected = numpy_helper.to_array(weight(m, "V")).astype(np.float16)
    assert numpy_helper.to_array(weight(out, "V")).tobytes() == expected.tobytes(), "rounding to nearest even"


def check_overridable_weights_stay(tool):
    m = chain()
    m.graph.input.append(v("W", (8, 8)))
    out = tool(m, *INFER)
    assert weight(out, "W").data_type == T.FLOAT and [n.input[0] for n in added(out)].count("W") == 1


def check_weight_read_as_float_inside_stays(tool):
    body = helper.make_graph([N("Softmax", ["V"], ["t"], "inner")], "then", [], [v("t", (8, 8))])
    other = helper.make_graph([N("Identity", ["V"], ["u"], "same")], "else", [], [v("u", (8, 8))])
    m = chain()
    m.graph.node.append(N("If", ["k"], ["z"], "branch", then_branch=body, else_branch=other))
    m.graph.input.append(v("k", (), T.BOOL))
    m.graph.output.append(v("z", (8, 8)))
    out = tool(m, *INFER)
    assert weight(out, "V").data_type == T.FLOAT and weight(out, "V__mpr_f16").data_type == F16


def check_training_info_keeps_its_weights(tool):
    m = chain()
    step = m.training_info.add()
    step.algorithm.CopyFrom(helper.make_graph([N("Identity", ["V"], ["V_new"])], "step", [], [v("V_new", (8, 8))]))
    step.update_binding.add(key="V", value="V_new")
    out = tool(m, *INFER, check=False)
    assert weight(out, "V").data_type == T.FLOAT and same(m.training_info[0], out.training_info[0])


def check_smaller_side_of_a_slice_is_cast(tool):
    def gathered(rows):
        return model([N("Gather", ["W", "i"], ["e"], "g"), N("MatMul", ["e", "V"], ["y"], "mm")], [v("i", (4,), T.INT64)],
                     [v("y", (4, 8))], [w("W", rows, 8), w("V", 8, 8)], infos=[v("e", (4, 8))])
    assert "e" in {n.input[0] for n in added(tool(gathered(100), *TRAIN))}
    assert "W" in {n.input[0] for n in added(tool(gathered(4), *TRAIN))}, "equal: the initializer"


def check_weights_that_overflow(tool):
    m = chain()
    big = numpy_helper.to_array(weight(m, "V")).copy()
    big[0, 0] = 7e4
    weight(m, "V").CopyFrom(numpy_helper.from_array(big, "V"))
    out = tool(m, *INFER)
    assert weight(out, "V").data_type == T.FLOAT and "range-init" in tool.why("m2")
    out = tool(m, *INFER, "--weights-oor", "saturate")
    assert numpy_helper.to_array(weight(out, "V"))[0, 0] == 65504
    assert "65504" in tool.report.read_text() or "oor" in tool.report.read_text(), "a line in the report"
    assert "do not fit" in tool(m, *INFER, "--weights-oor", "error", code=2)
    tool(m, *INFER, "--weights-oor", "nonsense", code=1)


def check_weights_that_vanish(tool):
    def with_tiny(shape, count):
        m = model([N("MatMul", ["x", "W"], ["y"], "mm")], [v("x", ("n", shape[0]))], [v("y", ("n", shape[1]))], [w("W", *shape)])
        a = numpy_helper.to_array(weight(m, "W")).copy()
        a.reshape(-1)[:count] = 1e-9
        weight(m, "W").CopyFrom(numpy_helper.from_array(a, "W"))
        return weight(tool(m, *INFER), "W").data_type
    assert with_tiny((8, 8), 1) == T.FLOAT and with_tiny((8, 8), 0) == F16, "64 elements: any"
    assert with_tiny((20, 20), 4) == F16 and with_tiny((20, 20), 5) == T.FLOAT, "else 1 %"


def check_special_values_survive(tool):
    m = chain()
    a = numpy_helper.to_array(weight(m, "V")).copy()
    a[0, :5] = [np.inf, -np.inf, np.nan, -0.0, 0.0]
    weight(m, "V").CopyFrom(numpy_helper.from_array(a, "V"))
    out = tool(m, *INFER, "--no-guard", "mask")
    b = numpy_helper.to_array(weight(out, "V"))
    assert b.dtype == np.float16, "still narrowed"
    assert b[0, 0] == np.inf and b[0, 1] == -np.inf and np.isnan(b[0, 2])
    assert np.signbit(b[0, 3]) and not np.signbit(b[0, 4])


def check_constants_get_a_twin_or_a_cast(tool):
    for form in ({"value": c("t", [1.5] * 8)}, {"value_floats": [1.5] * 8}, {"value_float": 1.5}):
        m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Constant", [], ["k"], "konst", **form),
                   N("Add", ["a", "k"], ["b"], "add"), N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
        out = tool(m, *INFER)
        assert solve.faults(out) == [] and node(out, "add").input[1].startswith("k__mpr_f16")
        assert same(node(m, "konst"), node(out, "konst")), "the constant itself stays"
        x = rng.standard_normal((2, 8)).astype(np.float32)
        assert np.allclose(run(m, x=x)[0], run(out, x=x)[0], rtol=2e-2, atol=2e-2)


def check_constant_of_shape(tool):
    for form in ({}, {"value": c("t", [0.5])}):
        m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Shape", ["x"], ["s"], "shape"),
                   N("ConstantOfShape", ["s"], ["k"], "fill", **form), N("Add", ["a", "k"], ["b"], "add"),
                   N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
        out = tool(m, *INFER)
        assert node(out, "add").input[1] != "k", "the low reader reads a low value"


def check_dtype_attributes(tool):
    m = model([N("RandomNormalLike", ["x"], ["k"], "noise", dtype=1), N("MatMul", ["x", "W"], ["a"], "mm"),
               N("Add", ["a", "k"], ["b"], "add"), N("MatMul", ["b", "W"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    assert same(node(out, "noise"), node(m, "noise"))


def check_user_cast_from_integers(tool):
    """A Cast of integers that float16 holds exactly may become one to float16."""
    def cast(elem, shape=("n", 8)):
        m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["y"], "mm")], [v("i", shape, elem)], [v("y")],
                  [w("W", 8, 8)])
        out = tool(m, *INFER)
        user, reader = node(out, "user"), node(out, "mm")
        return user.attribute[0].i, user.output[0], reader.input[0]
    for elem in (T.BOOL, T.UINT8, T.INT8):
        to, made, read = cast(elem)
        assert (to == F16 and made == read == "f") or (to == T.FLOAT and read == "f__mpr_f16"), (elem, to, made, read)
    for elem in (T.INT32, T.INT64, T.UINT16, T.DOUBLE):
        assert cast(elem) == (T.FLOAT, "f", "f__mpr_f16"), "not exact: a Cast behind it"


def check_retargeted_cast_comes_back(tool):
    m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["y"], "mm")], [v("i", ("n", 8), T.BOOL)], [v("y")],
              [w("W", 8, 8)], infos=[v("f")])
    base = tool(m, "--passes", "none")
    tool(m, *TRAIN)
    back = tool(tool.target, "--to", "fp32")
    assert same(base, back)


def check_cast_of_ours_passes_a_widening_one(tool):
    """What the model widens goes into 16 bits from where it was."""
    for ir in (8, 10):
        for elem, to, merged in ((F16, "fp16", 1), (F16, "bf16", 1), (T.UINT16, "bf16", 1), (T.INT64, "fp16", 0), (T.DOUBLE, "fp16", 0)):
            m = model([N("Cast", ["h"], ["f"], "up", to=1), N("MatMul", ["f", "W"], ["a"], "mm"), N("Exp", ["f"], ["e"], "exp"),
                       N("Add", ["a", "e"], ["y"], "add")], [v("h", elem=elem)], [v("y")], [w("W", 8, 8)], ir=ir, infos=[v("f")])
            out, totals = settled(tool, m, "--to", to)
            assert totals["casts_merged"] == merged and node(out, "exp").input[0] == "f"
            made = next(n for n in added(out) if n.output[0] == node(out, "mm").input[0])
            assert made.input[0] == ("h" if merged else "f") and made.name.startswith("f__mpr_")


def check_user_cast_reads_a_low_value(tool):
    """Every low value is a float32 one: nothing stands between it and a Cast of the model. Text tells the types apart."""
    for ir in (8, 10):
        for elem in (T.DOUBLE, T.INT32, T.BFLOAT16, F16, T.FLOAT, T.STRING):
            m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Cast", ["a"], ["d"], "user", to=elem),
                       N("MatMul", ["a", "W"], ["y"], "m2")], [v("x")], [v("y"), v("d", elem=elem)], [w("W", 8, 8)], ir=ir)
            out, totals = settled(tool, m)
            assert totals["casts_merged"] == (elem != T.STRING) and same(node(out, "user").attribute[0], node(m, "user").attribute[0])
            assert (node(out, "user").input[0] == "a") == (elem != T.STRING)
    both = [v("y"), v("d", elem=T.DOUBLE), v("a")]
    m = model([N("MatMul", ["x", "W"], ["a"], "m1"), N("Cast", ["a"], ["d"], "user", to=T.DOUBLE), N("MatMul", ["a", "W"], ["y"], "m2")],
              [v("x")], both, [w("W", 8, 8)])
    out, _ = settled(tool, m)
    assert node(out, "user").input[0] == "a__mpr_f16"


def check_user_cast_of_whole_numbers(tool):
    """Constants tell their numbers; one reader in float32 keeps the Cast."""
    for numbers, goes in (([1, 2, 2048], True), ([1, 2, 2049], False), ([-2048, 0, 1], True)):
        for elem in (np.int64, np.int32):
            m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["x", "W"], ["a"], "mm"), N("Add", ["a", "f"], ["b"], "add"),
                       N("MatMul", ["b", "V"], ["y"], "m2")], [v("x")], [v("y")], [w("W", 8, 3), w("V", 3, 8), c("i", numbers, elem)])
            out, _ = settled(tool, m)
            assert node(out, "user").attribute[0].i == (F16 if goes else T.FLOAT), (numbers, elem)
    m = model([N("Cast", ["i"], ["f"], "user", to=1), N("MatMul", ["f", "W"], ["a"], "mm"), N("Exp", ["f"], ["e"], "exp"),
               N("Add", ["a", "e"], ["y"], "add")], [v("i", elem=T.BOOL)], [v("y")], [w("W", 8, 8)])
    out, _ = settled(tool, m)
    assert node(out, "user").attribute[0].i == T.FLOAT
    m.graph.node.pop(2)
    m.graph.node[-1].op_type = "Identity"
    del m.graph.node[-1].input[1:]
    out, _ = settled(tool, m)
    assert node(out, "user").attribute[0].i == F16
    out, _ = settled(tool, m, "--exclude", "node:user")
    assert node(out, "user").attribute[0].i == T.FLOAT


def check_low_constants_beside_the_originals(tool):
    for ir in (8, 10):
        for form in ({"value": c("t", [1.5] * 8)}, {"value_floats": [1.5] * 8}, {"value_float": 1.5}):
            m = model([N("Constant", [], ["k"], "konst", **form), N("MatMul", ["x", "W"], ["a"], "mm"), N("Add", ["a", "k"], ["b"], "add"),
                       N("MatMul", ["b", "W"], ["d"], "m2"), N("Pow", ["d", "k"], ["y"], "pow")], [v("x")], [v("y")], [w("W", 8, 8)], ir=ir)
            base = tool(m, "--passes", "none")
            out = tool(m, *INFER)
            twin = next(n for n in out.graph.node if n.output[0] == "k__mpr_f16")
            assert twin.op_type == "Constant" and twin.attribute[0].t.data_type == F16 and node(out, "add").input[1] == twin.output[0]
            assert list(twin.attribute[0].t.dims) == ([] if "value_float" in form else [8]) and node(out, "pow").input[1] == "k"
            assert np.array_equal(numpy_helper.to_array(twin.attribute[0].t), np.full(twin.attribute[0].t.dims, 1.5, np.float16))
            first = tool.target
            tool(first, *INFER)
            assert tool.target.read_bytes() == first.read_bytes()
            back = tool(first, "--to", "fp32")
            assert list(back.graph.node) == list(base.graph.node)


def check_narrowing_user_casts_stay(tool):
    m = model([N("Cast", ["x"], ["h"], "down", to=F16), N("Cast", ["h"], ["f"], "up", to=1), N("MatMul", ["f", "W"], ["y"], "mm")],
              [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *INFER)
    assert node(out, "down").attribute[0].i == F16
    x = (1 + rng.standard_normal((2, 8)) / 2048).astype(np.float32)
    assert np.allclose(run(out, x=x)[0], run(m, x=x)[0], rtol=1e-2, atol=1e-2)
    chain = model([N("Cast", ["x"], ["i"], "int", to=T.INT32), N("Cast", ["i"], ["f"], "flt", to=1),
                   N("MatMul", ["f", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(chain, *INFER)
    assert node(out, "int").attribute[0].i == T.INT32, "the rounding to integers stays"


def check_dead_user_casts_stay(tool):
    m = chain()
    m.graph.node.append(N("Cast", ["r"], ["dead"], "unused", to=T.DOUBLE))
    assert node(tool(m, *INFER), "unused").attribute[0].i == T.DOUBLE


def check_sparse_weights(tool):
    m = chain()
    dense = m.graph.initializer.pop(1)
    values = numpy_helper.from_array(np.array([1.5, -2], np.float32), "V")
    m.graph.sparse_initializer.append(helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([3, 17]), "idx"), [8, 8]))
    out = tool(m, *INFER, check=False)
    assert same(out.graph.sparse_initializer[0], m.graph.sparse_initializer[0]) and dense.name == "V"
    assert "V" in {n.input[0] for n in added(out)}


def check_state_of_a_loop_has_one_type(tool):
    body = helper.make_graph([N("MatMul", ["s", "W"], ["t"], "inner"), N("Identity", ["go"], ["on"], "again")], "body",
                             [v("i", (), T.INT64), v("go", (), T.BOOL), v("s")], [v("on", (), T.BOOL), v("t")])
    m = model([N("MatMul", ["x", "W"], ["a"], "before"), N("Loop", ["k", "", "a"], ["y"], "loop", body=body)], [v("x")], [v("y")],
              [w("W", 8, 8), c("k", 3, np.int64)])
    for flags in (INFER, TRAIN):
        out = tool(m, *flags)
        x = rng.standard_normal((2, 8)).astype(np.float32)
        assert np.allclose(run(out, x=x)[0], run(m, x=x)[0], rtol=3e-2, atol=3e-2)


def check_declared_types(tool):
    m = chain(infos=[v("a", ("n", 8)), v("r", ("batch", 8))])
    m.graph.value_info[0].doc_string = "inner"
    out = tool(m, *INFER)
    a = info(out, "a")
    assert a.type.tensor_type.elem_type == F16 and a.doc_string == "inner"
    assert a.type.tensor_type.shape == m.graph.value_info[0].type.tensor_type.shape
    new = info(out, "x__mpr_f16")
    assert new.type.tensor_type.elem_type == F16 and new.type.tensor_type.shape == m.graph.input[0].type.tensor_type.shape


# ---- writing
def check_same_bytes_everywhere(tool):
    m = chain()
    tool(m, *INFER)
    first, source = tool.target.read_bytes(), tool.source
    for env in ({"TZ": "Asia/Tokyo"}, {"LC_ALL": "de_DE.UTF-8"}, {"OMP_NUM_THREADS": "1", "MPR_THREADS": "1"}):
        target = tool.folder / "again.onnx"
        subprocess.run([tool.path, source, "-o", target, *INFER], env={**os.environ, **env}, check=True, capture_output=True,
                       cwd=tool.folder)
        assert target.read_bytes() == first


def check_running_again_changes_nothing(tool):
    for ir in (8, 10):
        for flags in (INFER, TRAIN, (*INFER, "--io", "all=fp16"), (*INFER, "--weights-oor", "saturate")):
            tool(chain(ir=ir), *flags)
            first = tool.target
            tool(first, *flags)
            assert tool.target.read_bytes() == first.read_bytes(), (ir, flags)


def check_marks(tool):
    old, new = tool(chain(ir=9), *TRAIN), tool(chain(ir=10), *TRAIN)
    assert [p.key for p in old.metadata_props] == ["mpr.precision"] and not new.metadata_props
    assert all([(p.key, p.value) for p in n.metadata_props] == [("mpr.cast", "f16" if n.output[0] != "y" else "f32")]
               for n in added(new))
    assert all(not n.metadata_props for n in added(old))


def check_a_look_alike_is_the_users(tool):
    """A Cast with one of our names and without a mark stays."""
    m = model([N("Cast", ["x"], ["x__mpr_f16"], "x__mpr_f16", to=F16), N("Cast", ["x__mpr_f16"], ["f"], "f", to=1),
               N("MatMul", ["f", "W"], ["y"], "mm")], [v("x")], [v("y")], [w("W", 8, 8)])
    out = tool(m, *TRAIN)
    assert node(out, "x__mpr_f16").input[0] == "x"
    assert same(tool(tool.target, "--to", "fp32"), tool(m, "--passes", "none"))


def check_training_goes_back_exactly(tool):
    for ir in (8, 10):
        m = chain(ir=ir, infos=[v("a")])
        base = tool(m, "--passes", "none")
        for to in ("fp16", "bf16"):
            tool(m, *TRAIN, "--to", to)
            assert same(tool(tool.target, "--to", "fp32"), base)


def check_opsets_stay(tool):
    for opset, ir in ((9, 4), (13, 7), (21, 10)):
        out = tool(chain(opset=opset, ir=ir), *INFER)
        assert out.opset_import[0].version == opset and out.ir_version == ir


def check_unknown_fields_survive(tool):
    m = chain()
    raw = m.SerializeToString() + bytes([0xFA, 0x3F, 3]) + b"abc"  # field 1023 of the model
    path = tool.folder / "unknown.onnx"
    path.write_bytes(raw)
    tool(path, *TRAIN, check=False)
    assert bytes([0xFA, 0x3F, 3]) + b"abc" in tool.target.read_bytes()


if __name__ == "__main__":
    main(globals())
