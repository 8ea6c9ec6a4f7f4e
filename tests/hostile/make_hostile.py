"""Hand-made and randomly mutated safetensors files with the reference parser's verdict on each, and seeds for the fuzzers.

    pip install safetensors==0.8.0
    python make_hostile.py verdicts.json              writes the table that src/checkpoint/verdicts_test.cc replays
    python make_hostile.py --seeds DIR                writes DIR/{safetensors,index,config}/*: inputs to start the fuzzers from

verdicts.json: {"oracle", "seed", "cases": [{"name", "file" (hex), "reference": "accept"|"reject", "reason"?, "tensors"?: [[name, dtype, shape,
data (hex)]], "ours"?: "accept"|"reject", "why"?}], "written": [{"tensors": [[name, dtype, shape, data (hex)]], "metadata", "file" (hex)}]};
"ours" is there only where we deliberately differ, "why" says why; "written" are files made by the reference's writer.
"""

import ctypes
import json
import os
import random
import struct
import sys

import safetensors

SEED = 20261130
MUTANTS = 1200
DTYPES = "F64 F32 F16 BF16 F8_E4M3 F8_E5M2 F8_E8M0 F4 I64 I32 I16 I8 U64 U32 U16 U8 BOOL".split()


def dtype_bits(dtype):
    if dtype == "F4":
        return 4
    return 8 if dtype == "BOOL" or dtype.startswith("F8") else int(dtype.lstrip("BFIU"))


def pack(header, data=b"", length=None):
    if not isinstance(header, bytes):
        header = (header if isinstance(header, str) else json.dumps(header, separators=(",", ":"))).encode()
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(dtype="F32", shape=(2,), offsets=(0, 8), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets), **more}


VALID = {"a": entry()}
ZEROS = bytes(8)


def text_case(old, new, data=ZEROS):
    header = json.dumps(VALID, separators=(",", ":"))
    assert old in header
    return pack(header.replace(old, new), data)


def hand_made():
    valid = json.dumps(VALID, separators=(",", ":"))
    c = {}
    c["valid"] = pack(VALID, ZEROS)
    # the size of the file
    c["data_7_of_8"] = pack(VALID, bytes(7))
    c["data_12_of_8"] = pack(VALID, bytes(12))
    c["data_absent"] = pack(VALID)
    c["file_of_0_bytes"] = b""
    c["file_of_7_bytes"] = bytes(7)
    c["file_of_8_zeros"] = bytes(8)
    c["header_length_0"] = pack("", ZEROS, 0)
    c["header_length_2_64_minus_1"] = pack(VALID, ZEROS, 2**64 - 1)
    c["header_length_2_63"] = pack(VALID, ZEROS, 2**63)
    c["header_length_minus_8"] = pack(VALID, ZEROS, 2**64 - 8)
    c["header_length_100000001"] = pack(VALID, ZEROS, 100_000_001)
    c["header_length_100000000"] = pack(VALID, ZEROS, 100_000_000)
    c["header_length_one_past_the_end"] = pack(VALID, ZEROS, len(valid) + 8 + 1)
    c["header_length_into_the_data"] = pack(VALID, ZEROS, len(valid) + 8)
    c["header_length_one_short"] = pack(VALID, ZEROS, len(valid) - 1)
    c["header_length_big_endian"] = struct.pack(">Q", len(valid)) + valid.encode() + ZEROS
    # other files under this name
    c["html_page"] = b"<!DOCTYPE html>\n<html><head><title>401 Unauthorized</title></head><body>Please log in.</body></html>\n"
    c["xml_error"] = b'\n<?xml version="1.0" encoding="UTF-8"?><Error><Code>AccessDenied</Code></Error>'
    c["lfs_pointer"] = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0123456789abcdef" * 4 + b"\nsize 4976698672\n"
    c["json_error"] = b'{"error":"Repository not found"}'
    c["gguf"] = b"GGUF\x03\x00\x00\x00" + bytes(16)
    c["torch_zip"] = b"PK\x03\x04\x00\x00\x08\x08" + bytes(40)
    c["pickle"] = b"\x80\x02}q\x00(X\x01\x00\x00\x00a"
    # ranges
    two = lambda x, y: {"a": entry(offsets=x), "b": entry(offsets=y)}
    c["overlap"] = pack(two((0, 8), (4, 12)), bytes(12))
    c["shared_range"] = pack(two((0, 8), (0, 8)), ZEROS)
    c["contained_range"] = pack({"a": entry(shape=[4], offsets=(0, 16)), "b": entry(offsets=(4, 12))}, bytes(16))
    c["hole_between"] = pack(two((0, 8), (12, 20)), bytes(20))
    c["hole_at_start"] = pack({"a": entry(offsets=(4, 12))}, bytes(12))
    c["two_in_order"] = pack(two((0, 8), (8, 16)), bytes(range(16)))
    c["two_not_in_order"] = pack(two((8, 16), (0, 8)), bytes(range(16)))
    c["empty_between"] = pack({"a": entry(), "e": entry(shape=[0], offsets=(8, 8)), "b": entry(offsets=(8, 16))}, bytes(range(16)))
    c["empty_inside_another"] = pack({"a": entry(), "e": entry(shape=[0], offsets=(4, 4))}, ZEROS)
    c["empty_past_the_end"] = pack({"a": entry(), "e": entry(shape=[0], offsets=(12, 12))}, ZEROS)
    c["offsets_reversed"] = pack({"a": entry(offsets=(8, 0))}, ZEROS)
    c["offsets_negative"] = pack({"a": entry(offsets=(-8, 0))}, ZEROS)
    c["offsets_minus_zero"] = text_case("[0,8]", "[-0,8]")
    c["offsets_floats"] = pack({"a": entry(offsets=(0.0, 8.0))}, ZEROS)
    c["offsets_exponent"] = text_case("[0,8]", "[0,8e0]")
    c["offsets_strings"] = pack({"a": entry(offsets=("0", "8"))}, ZEROS)
    c["offsets_near_2_64"] = pack({"a": entry(offsets=(2**64 - 8, 2**64 - 1))}, ZEROS)
    c["offsets_wrap"] = pack({"a": entry(shape=[2], offsets=(2**64 - 8, 0))}, ZEROS)
    c["offsets_above_2_64"] = pack({"a": entry(offsets=(0, 2**64 + 8))}, ZEROS)
    c["offsets_2_63"] = pack({"a": entry(offsets=(0, 2**63))}, ZEROS)
    c["offsets_three"] = pack({"a": entry(offsets=(0, 8, 8))}, ZEROS)
    c["offsets_one"] = pack({"a": entry(offsets=(8,))}, ZEROS)
    c["offsets_none"] = pack({"a": entry(offsets=())}, ZEROS)
    c["offsets_nested"] = text_case("[0,8]", "[[0],8]")
    c["offsets_null"] = text_case("[0,8]", "null")
    c["offsets_leading_zero"] = text_case("[0,8]", "[0,08]")
    # shapes
    c["shape_product_wraps"] = pack({"a": entry(shape=[2**62, 4], offsets=(0, 0))})
    c["shape_product_wraps_in_bytes"] = pack({"a": entry(dtype="F64", shape=[2**61], offsets=(0, 0))})
    c["shape_product_wraps_in_bits"] = pack({"a": entry(dtype="U8", shape=[2**61], offsets=(0, 0))})
    c["shape_product_wraps_before_zero"] = pack({"a": entry(shape=[2**62, 4, 0], offsets=(0, 0))})
    c["shape_zero_before_product_wraps"] = pack({"a": entry(shape=[0, 2**62, 4], offsets=(0, 0))})
    c["shape_beyond_int64_after_zero"] = pack({"a": entry(shape=[0, 2**63], offsets=(0, 0))})
    c["shape_2_63_minus_1_twice_then_zero"] = pack({"a": entry(shape=[2**63 - 1, 2, 0], offsets=(0, 0))})
    c["shape_larger_than_range"] = pack({"a": entry(shape=[1000, 1000], offsets=(0, 4))}, bytes(4))
    c["shape_smaller_than_range"] = pack({"a": entry(shape=[1])}, ZEROS)
    c["shape_zero"] = pack({"a": entry(shape=[0, 5], offsets=(0, 0))})
    c["shape_zero_with_data"] = pack({"a": entry(shape=[0, 5])}, ZEROS)
    c["shape_scalar"] = pack({"a": entry(shape=[], offsets=(0, 4))}, bytes(4))
    c["shape_negative"] = pack({"a": entry(shape=[-2])}, ZEROS)
    c["shape_both_negative"] = pack({"a": entry(shape=[-1, -2])}, ZEROS)
    c["shape_float"] = pack({"a": entry(shape=[2.0])}, ZEROS)
    c["shape_null"] = text_case("[2]", "null")
    c["shape_number"] = text_case("[2]", "2")
    c["shape_object"] = text_case("[2]", "{}")
    c["shape_true"] = text_case("[2]", "[true]")
    c["shape_above_2_64"] = pack({"a": entry(shape=[2**64 + 2])}, ZEROS)
    c["shape_64_dimensions"] = pack({"a": entry(shape=[1] * 63 + [2])}, ZEROS)
    # element types
    for dtype in DTYPES:
        bits = dtype_bits(dtype)
        c["dtype_" + dtype] = pack({"a": entry(dtype=dtype, shape=[2, 4], offsets=(0, bits))}, bytes(range(bits)))
    c["dtype_F4_odd"] = pack({"a": entry(dtype="F4", shape=[3], offsets=(0, 2))}, bytes(2))
    c["dtype_F4_odd_floor"] = pack({"a": entry(dtype="F4", shape=[3], offsets=(0, 1))}, bytes(1))
    for dtype in ("F6_E2M3", "F6_E3M2"):
        c["dtype_" + dtype] = pack({"a": entry(dtype=dtype, shape=[4], offsets=(0, 3))}, bytes(3))
    c["dtype_C64"] = pack({"a": entry(dtype="C64", shape=[1])}, ZEROS)
    for name, dtype in {"Q4_0": "Q4_0", "lower_case": "f32", "torch_name": "float32", "empty": "", "space": "F32 ", "E4M3FN": "F8_E4M3FN"}.items():
        c["dtype_" + name] = pack({"a": entry(dtype=dtype)}, ZEROS)
    c["dtype_null"] = text_case('"F32"', "null")
    c["dtype_number"] = text_case('"F32"', "32")
    c["dtype_object"] = text_case('"F32"', '{"F32":null}')
    c["dtype_escaped"] = text_case('"F32"', '"F\\u00332"')
    # entries
    c["field_dtype_missing"] = pack({"a": {"shape": [2], "data_offsets": [0, 8]}}, ZEROS)
    c["field_shape_missing"] = pack({"a": {"dtype": "F32", "data_offsets": [0, 8]}}, ZEROS)
    c["field_offsets_missing"] = pack({"a": {"dtype": "F32", "shape": [2]}}, ZEROS)
    c["field_unknown"] = pack({"a": entry(quantization={"bits": [4, -1.5, None, True]})}, ZEROS)
    c["field_unknown_twice"] = text_case('"dtype"', '"x":1,"x":[{}],"dtype"')
    c["field_dtype_twice"] = text_case('"dtype"', '"dtype":"F32","dtype"')
    c["field_shape_twice"] = text_case('"shape"', '"shape":[2],"shape"')
    c["field_offsets_twice"] = text_case('"data_offsets"', '"data_offsets":[0,4],"data_offsets"')
    c["field_order"] = pack({"a": {"data_offsets": [0, 8], "shape": [2], "dtype": "F32"}}, ZEROS)
    c["field_upper_case"] = text_case('"dtype"', '"DType"')
    c["entry_null"] = pack({"a": None})
    c["entry_string"] = pack({"a": "F32"})
    c["entry_empty"] = pack({"a": {}})
    c["entry_array"] = pack({"a": ["F32", [2], [0, 8]]}, ZEROS)
    # names
    c["name_twice"] = pack('{"a":%s,"a":%s}' % (json.dumps(entry()), json.dumps(entry())), ZEROS)
    c["name_twice_other_range"] = pack('{"a":%s,"a":%s}' % (json.dumps(entry(shape=[1], offsets=(0, 4))), json.dumps(entry())), ZEROS)
    c["name_twice_escaped"] = pack('{"a":%s,"\\u0061":%s}' % (json.dumps(entry()), json.dumps(entry())), ZEROS)
    c["name_twice_both_ranges"] = pack('{"a":%s,"a":%s}' % (json.dumps(entry()), json.dumps(entry(offsets=(8, 16)))), bytes(16))
    c["name_empty"] = pack({"": entry()}, ZEROS)
    c["name_with_nul_escape"] = pack({"a\0b": entry()}, ZEROS)
    c["name_with_newline_escape"] = pack({"a\nb\x1b[31m": entry()}, ZEROS)
    c["name_path"] = pack({"../../etc/passwd": entry()}, ZEROS)
    c["name_unicode"] = pack('{"\u660e\u5929\U0001f600":%s}' % json.dumps(entry()), ZEROS)
    c["name_invalid_utf8"] = pack(valid.encode().replace(b'"a"', b'"\xff\xfe"'), ZEROS)
    c["name_overlong_utf8"] = pack(valid.encode().replace(b'"a"', b'"\xc0\xaf"'), ZEROS)
    c["name_surrogate_utf8"] = pack(valid.encode().replace(b'"a"', b'"\xed\xa0\x80"'), ZEROS)
    c["name_cut_utf8"] = pack(valid.encode().replace(b'"a"', b'"\xe6\x98"'), ZEROS)
    c["name_lone_surrogate_escape"] = pack(valid.replace('"a"', '"\\ud83d"'), ZEROS)
    c["name_raw_newline"] = pack(valid.replace('"a"', '"a\n"'), ZEROS)
    c["name_of_10000_bytes"] = pack({"n" * 10000: entry()}, ZEROS)
    # metadata
    c["metadata_only"] = pack({"__metadata__": {"format": "pt"}})
    c["metadata_and_tensor"] = pack({"__metadata__": {"format": "pt"}, **VALID}, ZEROS)
    c["metadata_last"] = pack({**VALID, "__metadata__": {"format": "pt"}}, ZEROS)
    c["metadata_empty"] = pack({"__metadata__": {}, **VALID}, ZEROS)
    c["metadata_number"] = pack({"__metadata__": {"a": 1}, **VALID}, ZEROS)
    c["metadata_null_value"] = pack({"__metadata__": {"a": None}, **VALID}, ZEROS)
    c["metadata_nested"] = pack({"__metadata__": {"a": {"b": "c"}}, **VALID}, ZEROS)
    c["metadata_array"] = pack({"__metadata__": [], **VALID}, ZEROS)
    c["metadata_string"] = pack({"__metadata__": "pt", **VALID}, ZEROS)
    c["metadata_null"] = pack({"__metadata__": None, **VALID}, ZEROS)
    c["metadata_like_a_tensor"] = pack({"__metadata__": entry()}, ZEROS)
    c["metadata_key_twice"] = pack('{"__metadata__":{"k":"1","k":"2"},"a":%s}' % json.dumps(entry()), ZEROS)
    c["metadata_twice"] = pack('{"__metadata__":{},"__metadata__":{},"a":%s}' % json.dumps(entry()), ZEROS)
    # the JSON itself
    c["header_empty_object"] = pack("{}")
    c["header_empty_object_with_data"] = pack("{}", ZEROS)
    c["header_array"] = pack("[]")
    c["header_null"] = pack("null")
    c["header_string"] = pack('"a"')
    c["header_number"] = pack("1")
    c["header_spaces_only"] = pack("        ")
    c["header_5000_arrays"] = pack("[" * 5000 + "]" * 5000)
    c["header_5000_objects"] = pack('{"a":' * 5000 + "1" + "}" * 5000)
    for levels in (30, 120, 124, 125, 126, 127, 128, 129, 200):
        c[f"field_unknown_{levels}_levels"] = pack('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":%s}}' % ("[" * levels + "]" * levels), ZEROS)
    c["header_padded_back"] = pack(valid + "   ", ZEROS)
    c["header_padded_front"] = pack("   " + valid, ZEROS)
    c["header_padded_newlines"] = pack(valid + "\r\n\t ", ZEROS)
    c["header_padded_nul"] = pack(valid + "\0\0\0", ZEROS)
    c["header_nul_inside"] = pack(valid.replace(":", ":\0", 1), ZEROS)
    c["header_two_objects"] = pack(valid + "{}", ZEROS)
    c["header_trailing_comma"] = pack(valid[:-1] + ",}", ZEROS)
    c["header_comment"] = pack("/* */" + valid, ZEROS)
    c["header_single_quotes"] = pack(valid.replace('"', "'"), ZEROS)
    c["header_byte_order_mark"] = pack("\ufeff" + valid, ZEROS)
    c["header_utf16"] = pack(valid.encode("utf-16-le"), ZEROS)
    c["header_nan"] = pack('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":NaN}}', ZEROS)
    c["header_huge_exponent"] = pack('{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"x":1e999}}', ZEROS)
    c["header_of_300_empty_tensors"] = pack({f"t{i}": entry(shape=[0], offsets=(0, 0)) for i in range(300)})
    return c


DIFFERENCES = {
    "name_twice": "a name that means two tensors is refused; the reference lets the last one win",
    "name_twice_other_range": "as name_twice",
    "name_twice_escaped": "as name_twice",
    "dtype_F6_E2M3": "an element type that nothing here can compute with is refused by name when the header is read",
    "dtype_F6_E3M2": "as dtype_F6_E2M3",
    "dtype_C64": "as dtype_F6_E2M3",
    "shape_beyond_int64_after_zero": "dimensions are int64 here; no writer makes this",
    "dtype_object": "a spelling that only the reference's parser generator allows; no writer makes it",
    "entry_array": "as dtype_object",
}


def mutants(rng):
    """Files near the valid ones: one to three structural or byte changes each."""
    numbers = [0, 1, 2, 3, 4, 7, 8, 9, 12, 16, 2**31, 2**32, 2**62, 2**63 - 1, 2**64 - 8, 2**64 - 1, 2**64, -1, -8, 0.0, 8.0, 1.5]
    odd = [None, True, "", "8", [], [0], {}, {"a": 1}, [[]]]

    def base():
        count = rng.randrange(1, 5)
        sizes = [rng.choice([0, 1, 2, 3]) for _ in range(count)]
        order = list(range(count))
        rng.shuffle(order)
        entries, at = {}, 0
        for i in order:
            dtype = rng.choice(DTYPES)
            bits = dtype_bits(dtype)
            elements = sizes[i] * (2 if dtype == "F4" else 1)
            length = elements * bits // 8
            entries[f"t{i}"] = entry(dtype=dtype, shape=rng.choice([[elements], [1, elements], [elements, 1]]), offsets=(at, at + length))
            at += length
        names = list(entries)
        rng.shuffle(names)
        header = {n: entries[n] for n in names}
        if rng.random() < 0.2:
            header = {"__metadata__": {"k": "v"}, **header}
        return header, bytes(rng.randrange(256) for _ in range(at))

    for _ in range(MUTANTS):
        header, data = base()
        tensors = [n for n in header if n != "__metadata__"]
        for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
            e = header[rng.choice(tensors)]
            what = rng.randrange(9)
            if what == 0 and isinstance(e.get("data_offsets"), list) and e["data_offsets"]:
                e["data_offsets"][rng.randrange(len(e["data_offsets"]))] = rng.choice(numbers)
            elif what == 1 and isinstance(e.get("shape"), list):
                if e["shape"] and rng.random() < 0.5:
                    e["shape"][rng.randrange(len(e["shape"]))] = rng.choice(numbers)
                else:
                    e["shape"].insert(rng.randrange(len(e["shape"]) + 1), rng.choice(numbers + [1] * 10))
            elif what == 2:
                e["dtype"] = rng.choice(DTYPES + ["f32", "Q8"])
            elif what == 3:
                e[rng.choice(["dtype", "shape", "data_offsets", "extra"])] = rng.choice(odd)
            elif what == 4:
                e.pop(rng.choice(["dtype", "shape", "data_offsets"]), None)
            elif what == 5:
                data = data[: max(0, len(data) - rng.randrange(1, 4))]
            elif what == 6:
                data += bytes(rng.randrange(1, 4))
            elif what == 7 and isinstance(e.get("data_offsets"), list):
                e["data_offsets"] = [o + 1 if isinstance(o, int) else o for o in e["data_offsets"]]
            else:
                e["note"] = rng.choice(odd)
        file = pack(header, data)
        if rng.random() < 0.3:
            at = rng.randrange(len(file))
            file = file[:at] + rng.choice([bytes([rng.randrange(256)]), b"", file[at : at + 1] * 2]) + file[at + 1 :]
        yield file


def verdict(file):
    try:
        tensors = safetensors.deserialize(file)
    except BaseException as error:  # a Rust panic arrives as BaseException
        return {"reference": "reject", "reason": str(error)[:120]}
    rows = [[name, t["dtype"], list(t["shape"]), bytes(t["data"]).hex()] for name, t in tensors]
    return {"reference": "accept", "tensors": sorted(rows)}


def written():
    """Files as the reference writes them: it orders by falling element size, then by name, so the order here is that one."""
    sets = [
        ([], {}),
        ([["a", "F32", [2, 3], bytes(range(24))]], {}),
        ([["a", "F32", [], bytes(4)], ["b", "F32", [0, 7], b""], ["h", "BF16", [3], bytes(6)], ["\u660e\"\\\n", "I8", [5, 1], bytes(range(5))]], {"format": "pt"}),
    ]
    out = []
    for tensors, metadata in sets:
        names = {"F32": "float32", "BF16": "bfloat16", "I8": "int8"}
        buffers = [ctypes.create_string_buffer(data, max(1, len(data))) for _, _, _, data in tensors]  # alive until serialize() is done
        flat = {n: safetensors.TensorSpec(dtype=names[d], shape=s, data_ptr=ctypes.addressof(buffer), data_len=len(b)) for (n, d, s, b), buffer in zip(tensors, buffers)}
        file = bytes(safetensors.serialize(flat, metadata or None))
        out.append({"tensors": [[n, d, s, b.hex()] for n, d, s, b in tensors], "metadata": metadata, "file": file.hex()})
    return out


def write_verdicts(path):
    cases = [{"name": name, "file": file.hex(), **verdict(file)} for name, file in hand_made().items()]
    for i, file in enumerate(mutants(random.Random(SEED))):
        cases.append({"name": f"mutant_{i}", "file": file.hex(), **verdict(file)})
    for case in cases:
        why = DIFFERENCES.get(case["name"])
        if why:
            case["ours"] = "reject" if case["reference"] == "accept" else "accept"
            case["why"] = why
    head = {"oracle": f"safetensors {safetensors.__version__}", "script": "make_hostile.py", "seed": SEED}
    lines = lambda rows: ",\n".join(json.dumps(row) for row in rows)
    text = f'{json.dumps(head)[:-1]}, "cases": [\n{lines(cases)}\n], "written": [\n{lines(written())}\n]}}\n'
    with open(path, "w") as out:
        out.write(text)
    accepted = sum(case["reference"] == "accept" for case in cases)
    print(f"{len(cases)} files: {accepted} accepted, {len(cases) - accepted} rejected, {sum('ours' in c for c in cases)} deliberate differences")


INDEX_SEEDS = [
    '{"metadata":{"total_size":16},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}',
    '{"weight_map":{}}',
    '{"weight_map":{"a":"../model.safetensors"}}',
    '{"weight_map":{"a":"/etc/passwd"}}',
    '{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}',
    '{"weight_map":{"a":1,"b":null,"c":["x"]}}',
    '{"weight_map":{"a":"model.bin"}}',
    '{"weight_map":{"a":"x\\u0000.safetensors"}}',
    "[]",
]
CONFIG_SEEDS = [
    '{"model_type":"qwen3","hidden_size":1024,"rms_norm_eps":1e-6,"tie_word_embeddings":true,"rope_scaling":null}',
    '{"hidden_size":4096.0,"num_hidden_layers":-1,"head_dim":18446744073709551615,"rope_theta":1e999}',
    '{"hidden_size":"64","tie_word_embeddings":"yes","model_type":7,"eos_token_id":[1,2]}',
    '{"a":{"a":{"a":{"a":[[[[[[]]]]]]}}}}',
    "[1,2,3]",
]


def write_seeds(folder):
    seeds = {"safetensors": list(hand_made().values()), "index": [s.encode() for s in INDEX_SEEDS], "config": [s.encode() for s in CONFIG_SEEDS]}
    for kind, files in seeds.items():
        os.makedirs(os.path.join(folder, kind), exist_ok=True)
        for i, file in enumerate(files):
            with open(os.path.join(folder, kind, f"seed_{i:03}"), "wb") as out:
                out.write(file)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--seeds":
        write_seeds(sys.argv[2])
    elif len(sys.argv) == 2:
        write_verdicts(sys.argv[1])
    else:
        sys.exit(__doc__)
