#!/usr/bin/env python3
"""llama-bench for machines that have llama.cpp only as the PyPI package xllamacpp.

Takes the flags that `w4pack bench --rival` gives llama-bench, runs the one test they describe through
llama.cpp's own server, and prints what llama-bench prints with `-o json`. CPU only.

    PATH=VENV/bin:$PATH w4pack bench --rival bench/llama_bench.py --rival-model model-Q4_0.gguf

The wheel is built for many machines: where both were measured in the same minutes it reached 0.86 of a
native AVX-512 VNNI build (4.05 and 4.72 tok/s), so ratios against it are to be multiplied by 0.86.
"""

import argparse
import json
import sys

import xllamacpp


def open_model(path: str, threads: int, context: int) -> xllamacpp.Server:
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    return xllamacpp.Server(params)


def timings(server: xllamacpp.Server, prompt: int, generated: int) -> dict:
    """llama.cpp's own clocks for a prompt of so many tokens and so many generated ones."""
    answer = server.handle_completions(
        {
            # Ids without meaning, past the special ones.
            "prompt": [2] + [1000 + 7919 * i % 200_000 for i in range(prompt - 1)],
            "max_tokens": generated,
            "temperature": 0.0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
    )
    if "timings" not in answer:
        raise RuntimeError(f"{prompt} tokens and {generated} more: {answer}")
    return answer["timings"]


def measure(server: xllamacpp.Server, prompt: int, generated: int, depth: int) -> float:
    """Tokens a second."""
    if prompt:
        times = timings(server, prompt, 1)
        found, speed = times["prompt_n"], times["prompt_per_second"]
        expected = prompt
    else:
        # The server's first token comes with the prompt; the others are timed.
        times = timings(server, depth + 1, generated + 1)
        found, speed = times["predicted_n"], times["predicted_per_second"]
        expected = generated + 1
    if found != expected:
        raise RuntimeError(f"{found} tokens were timed, not {expected}: {times}")
    return speed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", required=True)
    parser.add_argument("-p", type=int, default=512)
    parser.add_argument("-n", type=int, default=0)
    parser.add_argument("-d", type=int, default=0)
    parser.add_argument("-r", type=int, default=1)
    parser.add_argument("-t", type=int, required=True)
    parser.add_argument("-o", choices=["json"], required=True)
    parser.add_argument("-fa", type=int, choices=[1])
    parser.add_argument("-ngl", type=int, choices=[0], default=0)
    parser.add_argument("-dev", choices=["none"])
    flags = parser.parse_args()
    if bool(flags.p) == bool(flags.n):
        parser.error("give a prompt (-p) or tokens to generate (-n), the other one 0")

    server = open_model(flags.m, flags.t, flags.p + flags.d + flags.n + 64)
    speeds = [measure(server, flags.p, flags.n, flags.d) for _ in range(flags.r)]
    result = {
        "build_commit": f"xllamacpp {xllamacpp.__version__}",
        "backends": "CPU",
        "model_type": flags.m.rsplit("/", 1)[-1],
        "n_threads": flags.t,
        "n_gpu_layers": 0,
        "n_prompt": flags.p,
        "n_gen": flags.n,
        "n_depth": flags.d,
        "samples_ts": speeds,
    }
    print(json.dumps([result]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
