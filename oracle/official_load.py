"""Loads packed checkpoints with the released transformers + compressed-tensors and says what came out.

    official_load.py FOLDER... --dtype float32|bfloat16 --tokens 2,10,11 --out OUT

OUT/0.safetensors, OUT/1.safetensors, ... get `logits` (f32 [tokens, vocabulary], no cache) and every
parameter under its own name. stdout gets one JSON object a folder: the keys that were missing,
unexpected or of another shape.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


def load(folder: str, dtype: torch.dtype, tokens: torch.Tensor, out: Path) -> dict:
    model, info = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=dtype,
        attn_implementation="eager",
        output_loading_info=True,
    )
    model.eval()
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0].float()
    tensors = {"logits": logits.contiguous()}
    # A tied head shares its tensor with the embedding, which is named once.
    for name, parameter in model.named_parameters():
        tensors[name] = parameter.detach().contiguous()
    save_file(tensors, out)
    keys = ("missing_keys", "unexpected_keys", "mismatched_keys")
    return {key: sorted(map(str, info.get(key) or [])) for key in keys}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True, type=Path)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    arguments.out.mkdir(exist_ok=True)
    tokens = torch.tensor([[int(token) for token in arguments.tokens.split(",")]])
    for number, folder in enumerate(arguments.folders):
        out = arguments.out / f"{number}.safetensors"
        print(json.dumps(load(folder, getattr(torch, arguments.dtype), tokens, out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
