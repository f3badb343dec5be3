"""Is ptero's table of nodes upstream's schema? Compares every row: tag, name, fields in order, types, defaults.

    cargo run -q -p ptero-pte --example table > rows.txt
    python conformance/check_table.py rows.txt [schema.fbs]

Without a schema, that of the installed executorch package is taken.
"""

import importlib.util
import pathlib
import re
import sys

# A field type of ours and the type it must have in the schema: (type, required). Optional fields are not required there.
TYPES = {
    "Src": ("Tid", True),
    "Dst": ("Tid", True),
    "Value": ("Vid", True),
    "DstValue": ("Vid", True),
    "Int": ("IntOrVid", True),
    "Float": ("FloatOrVid", True),
    "ValueOrSrc": ("VidOrTid", True),
    "IntOrSrc": ("IntOrVidOrTid", True),
    "GeluForm": ("string", True),
    "PadMode": ("string", True),
    "QuantMode": ("string", True),
    "String": ("string", True),
    "DType": ("int8", False),
    "Chain": (("int32", "uint32"), False),
    "bool": ("bool", False),
    "i8": ("int8", False),
    "i32": ("int32", False),
    "u64": ("uint64", False),
    "f32": ("float", False),
}
TYPES.update({f"Vec<{name}>": (f"[{TYPES[name][0]}]", True) for name in ("Src", "Dst", "Int", "String", "i8", "i32", "DType")})
TYPES.update({"Vec<Fed>": ("[Tid]", True), "Vec<Collected>": ("[Tid]", True)})


def schema_rows(text):
    text = re.sub(r"//[^\n]*", "", text)
    tables = dict(re.findall(r"table (\w+)Node \{(.*?)\}", text, re.S))
    union = re.search(r"union OpNode \{(.*?)\}", text, re.S).group(1)
    for name in re.findall(r"(\w+)Node", union):
        fields = re.findall(r"(\w+)\s*:\s*([\[\]\w]+)\s*(?:=\s*([-\w.]+))?\s*(\(required\))?\s*;", tables[name])
        yield name, [(field, ty, default, bool(required)) for field, ty, default, required in fields]


def schema():
    if len(sys.argv) > 2:
        return pathlib.Path(sys.argv[2])
    package = importlib.util.find_spec("executorch").submodule_search_locations[0]
    return pathlib.Path(package) / "backends/mlx/serialization/schema.fbs"


def complaint(ours, theirs):
    (name, ty, default), (field, their_ty, their_default, required) = ours, theirs
    if name != field:
        return f"field {name} is {field} upstream"
    optional = ty.startswith("Option<")
    wanted, wanted_required = TYPES[ty[len("Option<") : -1] if optional else ty]
    if their_ty not in (wanted if isinstance(wanted, tuple) else (wanted,)):
        return f"{name}: {ty} is {their_ty} upstream"
    if required != (wanted_required and not optional):
        return f"{name}: {ty} is {'' if required else 'not '}required upstream"
    scalar = their_ty in ("int8", "int32", "uint32", "uint64", "float", "bool")
    if scalar and optional != (their_default == "null"):
        return f"{name}: {ty}, but upstream's default is {their_default}"
    zero = {"", "0", "0.0", "false", "null"}
    if default != their_default and not {default, their_default} <= zero and float(default) != float(their_default):
        return f"{name}: default {default}, upstream {their_default}"
    return None


def main():
    rows = []
    for line in open(sys.argv[1]):
        head, *fields = line.rstrip("\n").split(" | ")
        tag, name = head.split()
        fields = [re.match(r"(\w+): (.*) = (.*)$", field).groups() for field in fields if field]
        rows.append((int(tag), name, fields))
    upstream = list(schema_rows(schema().read_text()))
    faults = [] if len(rows) == len(upstream) else [f"{len(rows)} rows, upstream has {len(upstream)}"]
    for place, ((tag, name, ours), (their_name, theirs)) in enumerate(zip(rows, upstream), start=1):
        if (tag, name) != (place, their_name):
            faults.append(f"row {place} is {tag} {name}, upstream {their_name}")
        elif len(ours) != len(theirs):
            faults.append(f"{name}: {len(ours)} fields, upstream has {len(theirs)}")
        else:
            faults += [f"{name}: {fault}" for fault in map(complaint, ours, theirs) if fault]
    print(f"{len(rows)} rows compared with {len(upstream)} of the schema: {len(faults)} differences")
    print("\n".join(faults), file=sys.stderr)
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
