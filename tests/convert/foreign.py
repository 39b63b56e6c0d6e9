#!/usr/bin/env python3
"""Models in 16 bits that others wrote, on the way to float32: as exporters and converters for inference make them, and by hand.

    foreign.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from promise import *  # noqa: E402,F403

BACK, DROP, ALL = ("--to", "fp32"), ("--to", "fp32", "--drop-rounding"), ("--io", "all=fp32")


def foreign(keep_io=False):
    """As converters for inference write them: weights, inner values, inputs and outputs in float16."""
    low = np.float16
    elem = T.FLOAT if keep_io else F16
    first = [N("Cast", ["x"], ["x16"], "in_cast", to=F16)] if keep_io else []
    last = [N("Cast", ["y16"], ["y"], "out_cast", to=1)] if keep_io else []
    x, y = ("x16", "y16") if keep_io else ("x", "y")
    return model([*first, N("MatMul", [x, "W"], ["a"], "m1"), N("Add", ["a", "b"], ["d"], "add"), N("Softmax", ["d"], ["s"], "sm"),
                  N("MatMul", ["s", "W"], [y], "m2"), *last], [v("x", elem=elem)], [v("y", elem=elem)],
                 [w("W", 8, 8, dtype=low), w("b", 8, dtype=low)], infos=[v("a", elem=F16), v("s", elem=F16)])


def check_foreign_models_become_float(tool):
    x = rng.standard_normal((2, 8)).astype(np.float16)
    for keep_io in (False, True):
        m = foreign(keep_io)
        out = tool(m, "--to", "fp32")
        assert weight(out, "W").data_type == T.FLOAT and info(out, "a").type.tensor_type.elem_type == T.FLOAT
        assert list(out.graph.input) == list(m.graph.input) and list(out.graph.output) == list(m.graph.output)
        feed = x.astype(np.float32) if keep_io else x
        assert np.allclose(run(out, x=feed)[0], run(m, x=feed)[0], rtol=2e-3, atol=2e-3)
        first = tool.target
        tool(first, "--to", "fp32")
        assert tool.target.read_bytes() == first.read_bytes()


def check_foreign_interface_on_request(tool):
    out = tool(foreign(), "--to", "fp32", "--io", "all=fp32")
    assert out.graph.input[0].type.tensor_type.elem_type == T.FLOAT == out.graph.output[0].type.tensor_type.elem_type
    assert not nodes(out, "Cast")


def check_rounding_stays_unless_dropped(tool):
    m = foreign(keep_io=True)
    out = tool(m, "--to", "fp32")
    assert node(out, "in_cast").attribute[0].i == F16
    out = tool(m, "--to", "fp32", "--drop-rounding")
    assert not [n for n in nodes(out, "Cast") if n.attribute[0].i != T.FLOAT] and node(out, "m1").input[0] == "x"


def check_foreign_bodies(tool):
    body = helper.make_graph([N("MatMul", ["x", "W"], ["t"], "inner")], "then", [], [v("t", elem=F16)])
    other = helper.make_graph([N("Cast", ["z"], ["u"], "down", to=F16)], "else", [], [v("u", elem=F16)])
    m = model([N("If", ["k"], ["y"], "branch", then_branch=body, else_branch=other)],
              [v("x", elem=F16), v("z"), v("k", (), T.BOOL)], [v("y", elem=F16)], [w("W", 8, 8, dtype=np.float16)])
    tool(m, "--to", "fp32")
    tool(m, "--to", "fp32", "--drop-rounding")


def lows(m):
    """Types of 16 bits that are left, by what holds them."""
    found = {t.name for t in m.graph.initializer if t.data_type in (F16, BF16)}
    for n in nodes(m):
        found |= {n.output[0] for a in n.attribute if a.name in ("to", "dtype") and a.i in (F16, BF16)}
        found |= {n.output[0] for a in n.attribute if a.name == "value" and a.t.data_type in (F16, BF16)}
    return found


def back(tool, m, *flags, left=(), feeds=None, tol=2e-3, **more):
    """The model in float32: `left` is all that stays in 16 bits, the numbers are those of the model, a second run changes nothing."""
    out = tool(m, *flags, **more)
    first = tool.target
    assert lows(out) == set(left), lows(out)
    if feeds is not None:
        types = [{i.name: helper.tensor_dtype_to_np_dtype(i.type.tensor_type.elem_type) for i in g.graph.input} for g in (m, out)]
        old, new = ([r.astype(np.float64) for r in run(g, **{k: x.astype(t[k]) for k, x in feeds.items()})] for g, t in zip((m, out), types))
        for x, y in zip(old, new):
            assert np.allclose(x, y, rtol=tol, atol=tol), abs(x - y).max()
    tool(first, *flags)
    assert tool.target.read_bytes() == first.read_bytes(), "a second run"
    return out


def feed(*shape, seed=1):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def low(name, *shape):
    return w(name, *shape, dtype=np.float16)


def blocked(keep_io):
    """As converters write it whose user keeps an operator in float32: weights of 16 bits behind Casts, each blocked node between Casts."""
    elem = T.FLOAT if keep_io else F16
    x, y = ("graph_input_cast_0", "graph_output_cast_0") if keep_io else ("x", "y")
    ns = [N("Cast", ["x"], [x], "graph_input_cast0", to=F16)] * keep_io + [
        N("MatMul", [x, "W"], ["a"], "mm"), N("Cast", ["a"], ["add_input_cast_0"], "add_input_cast0", to=1),
        N("Cast", ["b"], ["add_input_cast_1"], "add_input_cast1", to=1),
        N("Add", ["add_input_cast_0", "add_input_cast_1"], ["add_output_cast_0"], "add"),
        N("Cast", ["add_output_cast_0"], ["d"], "add_output_cast0", to=F16), N("MatMul", ["d", "V"], [y], "m2")
    ] + [N("Cast", [y], ["y"], "graph_output_cast0", to=1)] * keep_io
    return model(ns, [v("x", elem=elem)], [v("y", elem=elem)], [low("W", 8, 8), low("b", 8), low("V", 8, 8)])


def check_operators_that_were_kept(tool):
    x = {"x": feed(2, 8)}
    back(tool, blocked(True), *BACK, left={"graph_input_cast_0", "d"}, feeds=x)
    out = back(tool, blocked(True), *DROP, feeds=x)
    assert node(out, "mm").input[0] == "x" and node(out, "m2").input[0] == "add_output_cast_0"
    out = back(tool, blocked(False), *DROP, left={"y"}, feeds=x)
    assert node(out, "mm").input[0] == "x__mpr_f32" and out.graph.output[0].type.tensor_type.elem_type == F16
    out = back(tool, blocked(False), *DROP, *ALL, feeds=x)
    assert {n.name for n in nodes(out, "Cast")} == {"add_input_cast0", "add_input_cast1"}


def check_constants_and_side_ports(tool):
    one = helper.make_tensor("one", F16, [1], np.array([1.5], np.float16).tobytes(), raw=True)
    for opset in (13, 15, 17, 20):
        m = model([N("Constant", [], ["e"], "two", value=c("", 2.0, np.float16)), N("Pow", ["x", "e"], ["p"], "pow"),
                   N("BatchNormalization", ["p", "s", "b", "m", "q"], ["n"], "bn"), N("Shape", ["n"], ["shape"]),
                   N("ConstantOfShape", ["shape"], ["k"], "fill", value=one), N("Mul", ["n", "k"], ["y"], "mul")],
                  [v("x", (2, 3, 4), F16)], [v("y", (2, 3, 4), F16)],
                  [low("s", 3), low("b", 3), low("m", 3), c("q", np.ones(3), np.float16)], opset=opset)
        back(tool, m, *BACK, left={"y"}, feeds={"x": feed(2, 3, 4)}, tol=5e-2)
        back(tool, m, *BACK, *ALL, feeds={"x": feed(2, 3, 4)}, tol=5e-2)


def check_casts_that_round_nothing(tool):
    """From 16 bits to the same, from truth values and small numbers: float32 without a rounding that was not there before."""
    m = model([N("MatMul", ["x", "W"], ["a"], "mm"), N("Cast", ["a"], ["same"], to=F16), N("Cast", ["t"], ["truth"], to=F16),
               N("Cast", ["k"], ["number"], to=F16), N("Add", ["same", "truth"], ["s"]), N("Add", ["s", "number"], ["y"])],
              [v("x", elem=F16), v("t", (), T.BOOL)], [v("y", elem=F16)], [low("W", 8, 8), c("k", 7, np.int64)])
    back(tool, m, *BACK, left={"y"}, feeds={"x": feed(2, 8), "t": np.array(True)}, tol=5e-3)


def check_whole_numbers_round_unless_dropped(tool):
    m = model([N("Cast", ["n"], ["f"], "cast", to=F16), N("Mul", ["x", "f"], ["y"], "mul")], [v("x", elem=F16), v("n", elem=T.INT64)],
              [v("y", elem=F16)])
    x = {"x": feed(2, 8), "n": np.arange(16).reshape(2, 8)}
    back(tool, m, *BACK, left={"f", "y"}, feeds=x)
    out = back(tool, m, *DROP, left={"y"}, feeds=x)
    assert node(out, "cast").attribute[0].i == 1 and node(out, "mul").input[1] == "f"


def check_rounding_of_outputs_and_sequences(tool):
    """A Cast that makes an output in 16 bits stays; so does one for readers that take nothing else."""
    m = model([N("Exp", ["x"], ["e"], "exp"), N("Cast", ["e"], ["y"], "last", to=F16), N("MatMul", ["y", "W"], ["z"], "mm"),
               N("SequenceEmpty", [], ["none"], dtype=F16), N("SequenceInsert", ["none", "z"], ["s"])],
              [v("x")], [v("y", elem=F16), helper.make_tensor_sequence_value_info("s", F16, None)], [low("W", 8, 8)])
    out = back(tool, m, *DROP, left={"y", "none", "z__mpr_f16"})
    assert node(out, "last").input[0] == "e"
    m = model([N("Exp", ["x"], ["e"], "exp"), N("Cast", ["e"], ["y"], "last", to=F16), N("MatMul", ["y", "W"], ["z"], "mm")],
              [v("x")], [v("y", elem=F16), v("z", elem=F16)], [low("W", 8, 8)])
    out = back(tool, m, *DROP, *ALL, feeds={"x": feed(2, 8)}, tol=1e-2)
    assert [o.type.tensor_type.elem_type for o in out.graph.output] == [1, 1]


def check_rounding_around_bodies(tool):
    """Casts in a body, of its result, and of a loop's state."""
    turn = helper.make_graph([N("Cast", ["s"], ["f"], to=1), N("Tanh", ["f"], ["t"]), N("Cast", ["t"], ["u"], to=F16), N("Identity", ["c"], ["d"])],
                             "turn", [v("i", (), T.INT64), v("c", (), T.BOOL), v("s", (2, 8), F16)], [v("d", (), T.BOOL), v("u", (2, 8), F16)])
    m = model([N("Loop", ["n", "", "x"], ["r"], "loop", body=turn), N("MatMul", ["r", "W"], ["y"], "mm")], [v("x", (2, 8), F16)], [v("y", (2, 8), F16)],
              [low("W", 8, 8), c("n", 3, np.int64)])
    back(tool, m, *BACK, left={"u", "y"}, feeds={"x": feed(2, 8)})
    back(tool, m, *DROP, left={"y"}, feeds={"x": feed(2, 8)})
    back(tool, m, *DROP, *ALL, feeds={"x": feed(2, 8)})


if __name__ == "__main__":
    main(globals())
