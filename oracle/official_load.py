"""Loads a packed checkpoint with the released transformers + compressed-tensors and says what came out.

    official_load.py FOLDER --dtype float32|bfloat16 --tokens 2,10,11 --out FILE.safetensors

FILE gets `logits` (f32 [tokens, vocabulary], no cache) and every parameter under its own name.
stdout gets one JSON object: the keys that were missing, unexpected or of another shape.
"""

import argparse
import json
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    model, info = AutoModelForCausalLM.from_pretrained(
        arguments.folder,
        dtype=getattr(torch, arguments.dtype),
        attn_implementation="eager",
        output_loading_info=True,
    )
    model.eval()
    tokens = torch.tensor([[int(token) for token in arguments.tokens.split(",")]])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0].float()

    tensors = {"logits": logits.contiguous()}
    # The head shares its tensor with the embedding; safetensors stores each tensor once.
    for name, parameter in model.named_parameters():
        tensors[name] = parameter.detach().contiguous()
    save_file(tensors, arguments.out)
    keys = ("missing_keys", "unexpected_keys", "mismatched_keys")
    print(json.dumps({key: sorted(map(str, info.get(key) or [])) for key in keys}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
