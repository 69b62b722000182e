"""Reads a GGUF file with llama.cpp's own library and holds it against the packed checkpoint of the same
source, and against what that library makes of the source's tokenizer.

    gguf_read.py MODEL.gguf PACKED SOURCE

PACKED is a conversion of SOURCE with layout emb4, towers dropped and f16 steps: every block must
dequantize to exactly code * step. stdout gets one JSON object with counts; any difference raises.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.vocab import LlamaHfVocab, SpecialVocab
from safetensors import safe_open

# llama.cpp's converter of Gemma 4 makes these visible, since its parser of answers needs them.
VISIBLE = set("<|channel> <channel|> <|tool_call> <tool_call|> <|tool_response> <tool_response|>".split())
VISIBLE.add('<|"|>')


def unpacked(packed, module: str, rows: slice) -> np.ndarray:
    """code * step in float32, [rows, columns]."""
    words = packed.get_slice(f"{module}.weight_packed")[rows].view(np.uint8)
    steps = packed.get_slice(f"{module}.weight_scale")[rows]
    assert steps.dtype == np.float16, module
    codes = np.stack([words & 15, words >> 4], axis=-1).reshape(words.shape[0], -1).astype(np.int8) - 8
    return codes.astype(np.float32) * np.repeat(steps.astype(np.float32), 32, axis=1)


def bf16_as_f32(packed_path: Path, name: str) -> np.ndarray:
    """numpy has no bf16: take the bits from the file."""
    with open(packed_path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        info = json.loads(file.read(length))[name]
        begin, end = info["data_offsets"]
        file.seek(8 + length + begin)
        bits = np.frombuffer(file.read(end - begin), np.uint16)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(info["shape"])


def assert_same(values: np.ndarray, expected: np.ndarray, name: str) -> None:
    assert values.dtype == np.float32 and values.shape == expected.shape, name
    assert np.array_equal(values.view(np.uint32), expected.view(np.uint32)), name


def check_tensors(reader: gguf.GGUFReader, packed_path: Path) -> dict:
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 200)
    found = {tensor.name: tensor for tensor in reader.tensors}
    counts = {"blocks": 0, "values": 0, "vectors": 0}
    with safe_open(packed_path, "numpy") as packed:
        for key in packed.keys():
            if key.endswith((".weight_scale", ".weight_shape")):
                continue
            # The one name without an ending; llama.cpp's converter gives it one too.
            ending = ".weight" if key.endswith("layer_scalar") else ""
            name = names.get_name(key.removesuffix("_packed") + ending, try_suffixes=(".weight",))
            tensor = found.pop(name)
            if not key.endswith(".weight_packed"):
                values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
                assert_same(values, bf16_as_f32(packed_path, key), name)
                counts["vectors"] += 1
                continue
            assert tensor.tensor_type == gguf.GGMLQuantizationType.Q4_0, name
            height, width = int(tensor.shape[1]), int(tensor.shape[0])
            # So many rows at a time that a table of billions of values takes little memory.
            chunk = max(1, (1 << 24) // width)
            for first in range(0, height, chunk):
                rows = slice(first, min(height, first + chunk))
                values = gguf.quants.dequantize(tensor.data[rows], tensor.tensor_type)
                assert_same(values, unpacked(packed, key.removesuffix(".weight_packed"), rows), name)
                counts["blocks"] += values.size // 32
                counts["values"] += values.size
    assert list(found) == ["rope_freqs.weight"], list(found)
    return counts


def check_vocabulary(reader: gguf.GGUFReader, source: Path) -> dict:
    vocabulary = LlamaHfVocab(source)
    tokens, types = [], []
    for text, _, token_type in vocabulary.all_tokens():
        tokens.append(text.decode())
        types.append(int(gguf.TokenType.USER_DEFINED if text.decode() in VISIBLE else token_type))
    ours = reader.get_field("tokenizer.ggml.tokens").contents()
    our_types = reader.get_field("tokenizer.ggml.token_type").contents()
    assert ours[: len(tokens)] == tokens
    assert our_types[: len(tokens)] == types
    # Rows behind the tokenizer's last token.
    assert set(our_types[len(tokens) :]) <= {int(gguf.TokenType.UNUSED)}
    special = SpecialVocab(source, load_merges=True)
    assert reader.get_field("tokenizer.ggml.merges").contents() == special.merges
    keys = gguf.Keys.Tokenizer
    names = {"bos": keys.BOS_ID, "eos": keys.EOS_ID, "unk": keys.UNK_ID, "pad": keys.PAD_ID, "mask": keys.MASK_ID}
    for kind, token in special.special_token_ids.items():
        assert reader.get_field(names[kind]).contents() == token, kind
    template = reader.get_field("tokenizer.chat_template")
    assert (template and template.contents()) == special.chat_template
    return {"tokens": len(tokens), "merges": len(special.merges)}


def main() -> int:
    model, packed, source = map(Path, sys.argv[1:])
    reader = gguf.GGUFReader(model)
    counts = check_tensors(reader, packed / "model.safetensors")
    counts |= check_vocabulary(reader, source)
    print(json.dumps(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
