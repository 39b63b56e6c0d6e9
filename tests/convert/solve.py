"""Types of every value of a model, in all scopes and calls of functions.

Types go forward only, from declarations, initializers, attributes and the schemas of the onnx package; shapes are
never looked at. What contradicts a schema, a declaration or itself is a fault:

    faults(onnx.load(path, load_external_data=False)) -> ["path: what", ...]

A type is a nested tuple: ("tensor", 1), ("seq", ("tensor", 1)), ("optional", ...); None is not known.
"""
from collections import ChainMap

import onnx
from onnx import TensorProto, defs, helper

FLOAT, INT64, STRING, BOOL = 1, 7, 8, 9
BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",), "SequenceMap": ("body",)}


def of_proto(proto):
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        return ("tensor", proto.tensor_type.elem_type) if proto.tensor_type.elem_type else None
    if kind == "sparse_tensor_type":
        return ("sparse_tensor", proto.sparse_tensor_type.elem_type)
    if kind in ("sequence_type", "optional_type"):
        inner = of_proto(getattr(proto, kind).elem_type)
        return inner and ("seq" if kind == "sequence_type" else "optional", inner)
    return None


def text(t):
    if t is None:
        return "?"
    return f"{t[0]}({text(t[1]) if isinstance(t[1], tuple) else TensorProto.DataType.Name(t[1]).lower()})"


def peel(t, wrapper):
    return t[1] if t and t[0] == wrapper else None


def domain_of(name):
    return "" if name == "ai.onnx" else name


class Faults(list):
    def same(self, where, what, a, b):
        if a and b and a != b:
            self.append(f"{where}: {what} is {text(a)} and {text(b)}")
        return a or b


class Call:
    """Where nodes stand: opsets, and the attributes that a function was called with."""

    def __init__(self, opsets, attributes=()):
        self.opsets = {domain_of(o.domain): o.version for o in opsets}
        self.attributes = dict(attributes)


class Solver:
    def __init__(self, model):
        self.faults, self.depth = Faults(), 0
        self.functions = {(domain_of(f.domain), f.name): f for f in model.functions}
        self.graph(model.graph, ChainMap(), "", None, Call(model.opset_import))

    # ---- scopes
    def define(self, env, name, kind, where):
        if name and name in env:
            self.faults.append(f"{where}: {name} is there already")
        if name:
            env.maps[0][name] = kind

    def graph(self, g, outer, path, given, call):
        env = outer.new_child()
        declared = {v.name: of_proto(v.type) for v in [*g.value_info, *g.output]}
        for i, v in enumerate(g.input):
            handed = given[i] if given and i < len(given) else None
            kind = self.faults.same(path, f"input {v.name}", of_proto(v.type), handed)
            self.define(env, v.name, kind, path)
        inputs = {v.name for v in g.input}
        tensors = [(t.name, t.data_type) for t in g.initializer]
        tensors += [(t.values.name, t.values.data_type) for t in g.sparse_initializer]
        for name, elem in tensors:
            if name in inputs:
                self.faults.same(path, f"initializer {name}", env[name], ("tensor", elem))
            else:
                self.define(env, name, ("tensor", elem), path)
        self.nodes(g.node, env, path, call, declared)
        for v in g.output:
            if v.name not in env or (not path and v.name not in env.maps[0]):
                self.faults.append(f"{path}: nothing makes the output {v.name}")
        for name, kind in declared.items():
            self.faults.same(path, f"declared {name}", kind, env.get(name))
        return [env.get(v.name) for v in g.output]

    def nodes(self, nodes, env, path, call, declared):
        for node in nodes:
            label = node.name or next((o for o in node.output if o), node.op_type)
            where = f"{path}/{label}"
            for name in node.input:
                if name and name not in env:
                    self.faults.append(f"{where}: {name} is not there yet")
            kinds = [env.get(name) if name else None for name in node.input]
            attributes = {}
            for a in node.attribute:
                if not a.ref_attr_name:
                    attributes[a.name] = a
                elif a.ref_attr_name in call.attributes:
                    attributes[a.name] = call.attributes[a.ref_attr_name]
            made = self.outputs(node, attributes, kinds, env, where, call)
            for k, name in enumerate(node.output):
                kind = made[k] if k < len(made) else None
                self.define(env, name, kind or declared.get(name), where)

    # ---- nodes
    def outputs(self, node, attributes, kinds, env, where, call):
        key = (domain_of(node.domain), node.op_type)
        if key in self.functions:
            return self.function(self.functions[key], attributes, kinds, where)
        if key[0] == "" and node.op_type in BODIES:
            made = self.flow(node, attributes, kinds, env, where, call)
            self.schema(node, attributes, kinds, where, call, made)
            return made
        return self.schema(node, attributes, kinds, where, call, None)

    def function(self, f, attributes, kinds, where):
        if self.depth == 32:
            return []
        self.depth += 1
        env = ChainMap(dict(zip(f.input, kinds + [None] * len(f.input))))
        inner = Call(f.opset_import, {a.name: a for a in f.attribute_proto})
        inner.attributes.update(attributes)
        declared = {v.name: of_proto(v.type) for v in getattr(f, "value_info", [])}
        self.nodes(f.node, env, f"{where}:{f.name}", inner, declared)
        self.depth -= 1
        return [env.get(name) for name in f.output]

    def flow(self, node, attributes, kinds, env, where, call):
        def body(name, given):
            if name not in attributes:
                self.faults.append(f"{where}: no {name}")
                return []
            return self.graph(attributes[name].g, env, f"{where}.{name}", given, call)

        same = self.faults.same
        if node.op_type == "If":
            two = [body(name, None) for name in BODIES["If"]]
            return [same(where, f"branch output {i}", a, b) for i, (a, b) in enumerate(zip(*two))]
        if node.op_type == "Loop":
            made = body("body", [("tensor", INT64), ("tensor", BOOL), *kinds[2:]])
            for i, (a, b) in enumerate(zip(kinds[2:], made[1:])):
                if peel(a, "optional") != b:
                    same(where, f"state {i}", a, b)
            return made[1:]
        if node.op_type == "Scan":
            given = kinds[1:] if call.opsets.get("", 1) < 9 else kinds
            made = body("body", given)
            states = len(given) - attributes["num_scan_inputs"].i
            return [same(where, f"state {i}", a, b) for i, (a, b) in enumerate(zip(given[:states], made))] + made[states:]
        made = body("body", [peel(k, "seq") or k for k in kinds])
        return [k and ("seq", k) for k in made]

    def schema(self, node, attributes, kinds, where, call, known):
        domain = domain_of(node.domain)
        if domain not in call.opsets:
            self.faults.append(f"{where}: no opset for the domain '{domain}'")
            return []
        try:
            schema = defs.get_schema(node.op_type, call.opsets[domain], domain)
        except onnx.defs.SchemaError:
            if domain == "":
                self.faults.append(f"{where}: there is no {node.op_type} in opset {call.opsets['']}")
            return []
        if schema.deprecated:
            self.faults.append(f"{where}: {node.op_type} is deprecated")
        sets = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        bound = {}
        self.bind(node, schema.inputs, node.input, kinds, sets, bound, where)
        made = known if known is not None else self.by_attribute(node, attributes, kinds) if domain == "" else None
        result = []
        for k in range(len(node.output)):
            formal = formal_of(schema.outputs, k)
            if formal is None:
                self.faults.append(f"{where}: {node.op_type} has no output {k}")
                break
            kind = made[k] if made and k < len(made) else None
            several = formal.option == defs.OpSchema.FormalParameterOption.Variadic and not formal.is_homogeneous
            if not kind and not several:
                kind = bound.get(formal.type_str)
                only = sets.get(formal.type_str, {formal.type_str})
                if not kind and len(only) == 1:
                    kind = from_text(next(iter(only)))
            result.append(kind)
        self.bind(node, schema.outputs, node.output, result, sets, bound, where)
        return result

    def bind(self, node, formals, names, kinds, sets, bound, where):
        variadic = defs.OpSchema.FormalParameterOption.Variadic
        for k, (name, kind) in enumerate(zip(names, kinds)):
            formal = formal_of(formals, k)
            if formal is None:
                self.faults.append(f"{where}: {node.op_type} has no port {k}")
                continue
            if not name or not kind:
                continue
            if text(kind) not in {s.replace(" ", "") for s in sets.get(formal.type_str, {formal.type_str})}:
                self.faults.append(f"{where}: port {formal.name} of {node.op_type} cannot be {text(kind)}")
            elif formal.type_str in sets and (formal.option != variadic or formal.is_homogeneous):
                self.faults.same(where, f"{formal.type_str} of {node.op_type}", bound.setdefault(formal.type_str, kind), kind)

    def by_attribute(self, node, attributes, kinds):
        op, first = node.op_type, kinds[0] if kinds else None

        def number(name, absent):
            return attributes[name].i if name in attributes else absent

        def tensor(elem):
            return [("tensor", elem)] if elem else [first]

        if op in ("Cast", "BitCast"):
            to = attributes.get("to")
            return to and tensor(to.i or TensorProto.DataType.Value(to.s.decode()))
        if op == "Constant":
            forms = {"value_float": FLOAT, "value_floats": FLOAT, "value_int": INT64, "value_ints": INT64,
                     "value_string": STRING, "value_strings": STRING}
            for name, a in attributes.items():
                if name == "value":
                    return tensor(a.t.data_type)
                if name == "sparse_value":
                    return tensor(a.sparse_tensor.values.data_type)
                if name in forms:
                    return tensor(forms[name])
            return None
        if op == "ConstantOfShape":
            return tensor(attributes["value"].t.data_type if "value" in attributes else FLOAT)
        if op in ("EyeLike", "RandomNormalLike", "RandomUniformLike", "Bernoulli"):
            return tensor(number("dtype", 0))
        defaults = {"RandomNormal": FLOAT, "RandomUniform": FLOAT, "Multinomial": 6}
        if op in defaults:
            return tensor(number("dtype", defaults[op]))
        if op in ("HannWindow", "HammingWindow", "BlackmanWindow", "MelWeightMatrix"):
            return tensor(number("output_datatype", FLOAT))
        if op == "SequenceEmpty":
            return [("seq", ("tensor", number("dtype", FLOAT)))]
        if op in ("SequenceConstruct", "SplitToSequence"):
            return [first and ("seq", first)]
        if op in ("SequenceAt", "ConcatFromSequence"):
            return [peel(first, "seq")]
        if op == "Optional":
            kind = of_proto(attributes["type"].tp) if "type" in attributes else first
            return [kind and ("optional", kind)]
        if op == "OptionalGetElement":
            return [peel(first, "optional") or first]
        if op == "CastLike":
            return [kinds[1]]
        if op == "QuantizeLinear":
            zero = kinds[2] if len(kinds) > 2 else None
            return [zero or ("tensor", number("output_dtype", 0) or TensorProto.UINT8)]
        if op == "DequantizeLinear":
            return tensor(number("output_dtype", 0)) if number("output_dtype", 0) else [kinds[1]]
        if op == "LayerNormalization":
            return [first] + 2 * [("tensor", number("stash_type", FLOAT))]
        return None


def formal_of(formals, k):
    if k < len(formals):
        return formals[k]
    last = formals[-1] if formals else None
    return last if last and last.option == defs.OpSchema.FormalParameterOption.Variadic else None


def from_text(s):
    head, _, inner = s.replace(" ", "").partition("(")
    if head in ("seq", "optional"):
        inner = from_text(inner[:-1])
        return inner and (head, inner)
    try:
        return (head, TensorProto.DataType.Value(inner[:-1].upper())) if inner else None
    except ValueError:
        return None


def faults(model):
    return list(Solver(model).faults)
