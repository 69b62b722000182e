"""A full-size packed checkpoint on w4pack and in transformers, on one GPU.

    full_size.py FOLDER --logits W4PACK.safetensors --tokens 700 --generate 32 [--device cuda]

FOLDER is a packed checkpoint (layout emb4), W4PACK.safetensors what `w4pack run --logits` wrote for the prompt
that `full_size.py FOLDER --prompt 700` prints. Unpacks every module on the GPU (code times scale, in float32), loads the result into
the class that config.json names, key by key, and prints, one line each,

- logits at 8 positions of the prompt, and at all of them and of the answer: largest and mean difference,
  how often the likeliest id and the ten likeliest are the same, where not: the distance of the two best;
- the greedy answer, and how many ids of w4pack's are the same;
- the same differences with keys and values rounded to f16 in transformers too, as w4pack keeps them: what
  is left then is everything else.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

GROUP = 32


def prompt(folder: Path, count: int) -> list[int]:
    """Ids without meaning, behind <bos>; none of the special ones."""
    config = AutoConfig.from_pretrained(folder)
    return [2] + [110 + (i * 7919) % (config.vocab_size - 110) for i in range(1, count)]


def unpack(words: torch.Tensor, scales: torch.Tensor, device: str) -> torch.Tensor:
    """`[out, in / 8]` words and `[out, in / 32]` scales to `[out, in]` values."""
    words, scales = words.to(device), scales.to(device).float()
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=device)
    values = torch.empty(words.shape[0], words.shape[1] * 8, device=device)
    for first in range(0, words.shape[0], 16384):
        rows = slice(first, first + 16384)
        codes = ((words[rows].unsqueeze(-1) >> shifts) & 15) - 8
        grouped = codes.reshape(codes.shape[0], -1, GROUP).float() * scales[rows].unsqueeze(-1)
        values[rows] = grouped.reshape(codes.shape[0], -1)
    return values


def load(folder: Path, device: str) -> torch.nn.Module:
    config = AutoConfig.from_pretrained(folder)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    tensors = load_file(folder / "model.safetensors")
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    parameters = dict(model.named_parameters())
    unset = set(parameters) - {"lm_head.weight"}
    with torch.no_grad():
        for name, tensor in tensors.items():
            if name.endswith(".weight_packed"):
                module = name.removesuffix(".weight_packed")
                name, tensor = f"{module}.weight", unpack(tensor, tensors[f"{module}.weight_scale"], device)
            elif name.endswith((".weight_scale", ".weight_shape")):
                continue
            target = parameters.get(name)
            if target is None:
                target = dict(model.named_buffers())[name]
            target.copy_(tensor.to(device).float().reshape(target.shape))
            unset.discard(name)
    if unset:
        sys.exit(f"tensors that the checkpoint does not have: {sorted(unset)}")
    model.tie_weights()
    return model.eval()


class Rounded(DynamicCache):
    """Keys and values as w4pack keeps them."""

    def update(self, keys, values, *rest, **named):
        return super().update(keys.half().to(keys.dtype), values.half().to(values.dtype), *rest, **named)


def compare(name: str, found: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (found - expected).abs()
    best, likeliest = found.argmax(-1), expected.argmax(-1)
    wrong = (best != likeliest).nonzero().flatten().tolist()
    two = expected.topk(2).values
    ten = (found.topk(10).indices == expected.topk(10).indices).all(-1).sum()
    margins = [round(float(two[row, 0] - two[row, 1]), 5) for row in wrong]
    print(
        f"{name}: {len(found)} rows, largest difference {difference.max():.2e}, mean {difference.mean():.2e}, "
        f"std of logits {expected.std():.2f}, likeliest id equal {len(found) - len(wrong)} of {len(found)}, "
        f"the ten likeliest and their order {ten}"
        + (f", distances of the two best where not {margins}" if wrong else "")
    )


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompt", type=int, help="print the ids of a prompt of so many tokens")
    parser.add_argument("--logits")
    parser.add_argument("--tokens", type=int, default=700)
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    if arguments.prompt:
        print(",".join(map(str, prompt(arguments.folder, arguments.prompt))))
        return 0

    torch.backends.cuda.matmul.allow_tf32 = False
    model = load(arguments.folder, arguments.device)
    ids = prompt(arguments.folder, arguments.tokens)
    found = load_file(arguments.logits)["logits"].to(arguments.device)
    if len(found) != arguments.tokens + arguments.generate - 1:
        sys.exit(f"{arguments.logits} has {len(found)} rows")
    # Row T-1+k chose token k.
    answer = found[arguments.tokens - 1 :].argmax(-1).tolist()
    tokens = torch.tensor([ids + answer[:-1]], device=arguments.device)
    with torch.no_grad():
        expected = model(input_ids=tokens, use_cache=False).logits[0].float()
        rounded = model(input_ids=tokens, past_key_values=Rounded(config=model.config)).logits[0].float()
        greedy = model.generate(
            tokens[:, : arguments.tokens],
            max_new_tokens=arguments.generate,
            min_new_tokens=arguments.generate,
            do_sample=False,
            eos_token_id=None,
        )[0, arguments.tokens :].tolist()
    positions = [arguments.tokens * (k + 1) // 8 - 1 for k in range(8)]
    compare(f"positions {positions}", found[positions], expected[positions])
    compare("all positions", found, expected)
    compare("all positions, keys and values in f16 there too", found, rounded)
    compare("of that, f16 keys and values alone", rounded, expected)
    same = next((k for k, (a, b) in enumerate(zip(answer, greedy)) if a != b), len(greedy))
    print(f"greedy ids: the first {same} of {len(greedy)} equal")
    return 0 if same == len(greedy) else 1


if __name__ == "__main__":
    sys.exit(main())
