"""GGUF version 3 with the standard library alone: write a file, and read what its header says."""

import struct

MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32

# Types of tensors: id in the file, elements per block, bytes per block.
TYPES = {
    "f32": (0, 1, 4), "f16": (1, 1, 2), "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24),
    "q8_0": (8, 32, 34), "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "bf16": (30, 1, 2),
}
NAMES = {number: name for name, (number, _, _) in TYPES.items()}

# Scalar types of metadata, by their id; 8 is a string and 9 an array.
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
UINT32, FLOAT32, STRING, ARRAY = 4, 6, 8, 9


def tensor_bytes(kind, shape):
    _, elements, size = TYPES[kind]
    if shape[0] % elements:
        raise ValueError(f"rows of {shape[0]} elements are not whole blocks of {elements} ({kind})")
    count = size
    for length in (shape[0] // elements, *shape[1:]):
        count *= length
    return count


def _text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _value(value):
    """A value of metadata, with its type in front: text, whole numbers, fractions, and lists of whole numbers."""
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _text(value)
    if isinstance(value, float):
        return struct.pack("<If", FLOAT32, value)
    if isinstance(value, list):
        return struct.pack(f"<IIQ{len(value)}I", ARRAY, UINT32, len(value), *value)
    return struct.pack("<II", UINT32, value)


def _padding(count):
    return b"\0" * (-count % ALIGNMENT)


def write(path, fields, tensors):
    """Writes `fields`, a dict, and `tensors`: (name, type, shape with the fastest dimension first, function to chunks of bytes)."""
    header = MAGIC + struct.pack("<IQQ", VERSION, len(tensors), len(fields))
    header += b"".join(_text(key) + _value(value) for key, value in fields.items())
    offset = 0
    for name, kind, shape, _ in tensors:
        header += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, TYPES[kind][0], offset)
        offset += tensor_bytes(kind, shape)
        offset += -offset % ALIGNMENT
    with open(path, "wb") as file:
        file.write(header + _padding(len(header)))
        for name, kind, shape, chunks in tensors:
            written = sum(file.write(chunk) for chunk in chunks())
            if written != tensor_bytes(kind, shape):
                raise ValueError(f"tensor `{name}` has {written} bytes, not {tensor_bytes(kind, shape)}")
            file.write(_padding(written))


def read(path):
    """The metadata (a dict) and the tensors (name to type and shape) of a file."""
    with open(path, "rb") as file:
        def take(layout):
            values = struct.unpack(f"<{layout}", file.read(struct.calcsize(f"<{layout}")))
            return values[0] if len(values) == 1 else values

        def text():
            return file.read(take("Q")).decode(errors="replace")

        def value(kind):
            if kind == STRING:
                return text()
            if kind == ARRAY:
                element, count = take("IQ")
                return [value(element) for _ in range(count)]
            return take(SCALARS[kind])

        if file.read(4) != MAGIC:
            raise ValueError(f"`{path}` is not a GGUF file")
        _, tensor_count, field_count = take("IQQ")
        fields = {}
        for _ in range(field_count):
            key = text()
            fields[key] = value(take("I"))
        tensors = {}
        for _ in range(tensor_count):
            name, rank = text(), take("I")
            shape = [take("Q") for _ in range(rank)]
            kind, _ = take("IQ")
            tensors[name] = NAMES[kind], shape
    return fields, tensors
