"""Folders as libraries write them, converted by one command each, and loaded and run again by these libraries.

    python benchmarks/folders.py --ampgraph PYTHON --work DIR [--node DIR] -o benchmarks/folders.md

Runs with the libraries (optimum-onnx, diffusers, onnxruntime-genai, torch); ``--ampgraph``: the Python of an
environment that has ampgraph; ``--builder``: of one in which onnxruntime-genai's builder runs, which needs a later
transformers than Optimum; ``--node``: a folder in which `npm install @huggingface/transformers` was run. Models are
small, from configurations and a seed: nothing is downloaded. What is compared is what the library gives for the folder
as it was written and for the converted one, on the CPU: that it loads and runs, and by how much its numbers differ.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

VOCABULARY = 64
WORDS = [[5, 7, 11, 13, 2, 17]]


@dataclass(frozen=True)
class Case:
    """One library's folder: how it is made, converted, and run; ``use`` returns named arrays."""

    name: str
    make: Callable[[Path], None]
    use: Callable[[Path, bool], dict[str, np.ndarray]]
    options: tuple[str, ...] = ()


def tokenizer(folder: Path) -> None:
    """Words w0, w1 ... as numbers."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    words = {"[PAD]": 0, "[UNK]": 1, "[EOS]": 2} | {f"w{n}": n for n in range(3, VOCABULARY)}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", eos_token="[EOS]", model_max_length=64
    ).save_pretrained(folder)


def export(model: object, folder: Path, task: str) -> None:
    from optimum.exporters.onnx import onnx_export_from_model

    model.config.save_pretrained(folder)
    onnx_export_from_model(model.eval(), folder, task=task, do_validation=False)
    tokenizer(folder)


# -- Optimum ----------------------------------------------------------------------------------------------------------


def make_t5(folder: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    export(
        T5ForConditionalGeneration(T5Config(**shape, decoder_start_token_id=0, eos_token_id=2, pad_token_id=0)),
        folder,
        "text2text-generation-with-past",
    )


def use_t5(folder: Path, converted: bool) -> dict[str, np.ndarray]:
    import torch
    from optimum.onnxruntime import ORTModelForSeq2SeqLM

    model = ORTModelForSeq2SeqLM.from_pretrained(folder)
    return generated(model, torch.tensor(WORDS))


def make_llama(folder: Path) -> None:
    export(llama(), folder, "text-generation-with-past")


def llama() -> object:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=VOCABULARY, bos_token_id=1, eos_token_id=2, pad_token_id=0, max_position_embeddings=128,
        )
    )  # fmt: skip


def use_llama(folder: Path, converted: bool) -> dict[str, np.ndarray]:
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM

    return generated(ORTModelForCausalLM.from_pretrained(folder), torch.tensor(WORDS))


def generated(model: object, words: object) -> dict[str, np.ndarray]:
    made = model.generate(
        words, max_new_tokens=12, min_new_tokens=12, do_sample=False, output_scores=True, return_dict_in_generate=True
    )
    scores = np.stack([score.float().numpy() for score in made.scores])
    return {"words": made.sequences.numpy(), "scores": np.where(np.isfinite(scores), scores, 0)}


# -- diffusers --------------------------------------------------------------------------------------------------------


def make_diffusion(folder: Path) -> None:
    import torch
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from optimum.exporters.onnx import main_export
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    source = folder.parent / f"{folder.name}.torch"
    source.mkdir(parents=True)
    words = ["<|startoftext|>", "<|endoftext|>", *"abcdefghij", *(f"{c}</w>" for c in "abcdefghij")]
    (source / "vocab.json").write_text(json.dumps({word: n for n, word in enumerate(words)}))
    (source / "merges.txt").write_text("#version: 0.2\n")
    torch.manual_seed(0)
    pipeline = StableDiffusionPipeline(
        vae=AutoencoderKL(
            block_out_channels=[32, 64], down_block_types=["DownEncoderBlock2D"] * 2,
            up_block_types=["UpDecoderBlock2D"] * 2, latent_channels=4,
        ),
        text_encoder=CLIPTextModel(
            CLIPTextConfig(
                hidden_size=32, intermediate_size=37, num_hidden_layers=2, num_attention_heads=4,
                vocab_size=len(words), bos_token_id=0, eos_token_id=1, pad_token_id=1,
            )
        ),
        tokenizer=CLIPTokenizer(str(source / "vocab.json"), str(source / "merges.txt"), model_max_length=77),
        unet=UNet2DConditionModel(
            block_out_channels=(32, 64), layers_per_block=2, sample_size=16, cross_attention_dim=32,
            down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
            up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        ),
        scheduler=DDIMScheduler(clip_sample=False), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip
    pipeline.save_pretrained(source)
    main_export(str(source), folder, task="text-to-image", library_name="diffusers", do_validation=False)


def use_diffusion(folder: Path, converted: bool) -> dict[str, np.ndarray]:
    import torch
    from optimum.onnxruntime import ORTStableDiffusionPipeline

    pipeline = ORTStableDiffusionPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    random = torch.Generator().manual_seed(0)
    made = pipeline(
        "a b c", num_inference_steps=3, guidance_scale=2.0, generator=random, height=32, width=32, output_type="np"
    )
    return {"image": made.images}


# -- onnxruntime-genai ------------------------------------------------------------------------------------------------


def make_genai(folder: Path) -> None:
    source = folder.parent / f"{folder.name}.torch"
    llama().save_pretrained(source)
    tokenizer(source)
    words = ["-i", source, "-o", folder, "-p", "fp32", "-e", "cpu"]
    subprocess.run([BUILDER, "-m", "onnxruntime_genai.models.builder", *map(str, words)], check=True)


def use_genai(folder: Path, converted: bool) -> dict[str, np.ndarray]:
    import onnxruntime_genai as og

    model = og.Model(str(folder))
    given = og.GeneratorParams(model)
    given.set_search_options(max_length=len(WORDS[0]) + 12, min_length=len(WORDS[0]) + 12, do_sample=False)
    generator = og.Generator(model, given)
    generator.append_tokens(np.array(WORDS[0], np.int32))
    scores = []
    while not generator.is_done():
        scores.append(np.array(generator.get_logits(), np.float32).ravel())
        generator.generate_next_token()
    return {"words": np.array(generator.get_sequence(0)), "scores": np.stack(scores)}


# -- transformers.js --------------------------------------------------------------------------------------------------

SCRIPT = """
import { AutoModel, Tensor, env } from '@huggingface/transformers';
const [root, name, dtypes] = process.argv.slice(2);
env.allowRemoteModels = false;
env.localModelPath = root;
const found = {};
const words = [5n, 7n, 11n, 13n, 2n, 17n];
for (const dtype of dtypes.split(',')) {
  const model = await AutoModel.from_pretrained(name, { dtype });
  const of = (values) => new Tensor('int64', BigInt64Array.from(values), [1, values.length]);
  const feeds = { input_ids: of(words), attention_mask: of(words.map(() => 1n)) };
  const out = await model(feeds);
  found[dtype] = Array.from(out.last_hidden_state.to('float32').data);
}
console.log(JSON.stringify(found));
"""


def make_web(folder: Path) -> None:
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
    from transformers import DistilBertConfig, DistilBertModel

    shape = {"dim": 64, "hidden_dim": 128, "n_layers": 2, "n_heads": 4, "vocab_size": VOCABULARY}
    flat = folder.parent / f"{folder.name}.flat"
    export(DistilBertModel(DistilBertConfig(**shape)), flat, "feature-extraction")
    (folder / "onnx").mkdir(parents=True)
    for file in flat.iterdir():
        file.rename(folder / "onnx" / file.name if file.suffix == ".onnx" else folder / file.name)
    few = MatMulNBitsQuantizer(onnx.load(folder / "onnx" / "model.onnx"), bits=4, block_size=32, is_symmetric=True)
    few.process()
    few.model.save_model_to_file(str(folder / "onnx" / "model_q4.onnx"))


def use_web(folder: Path, converted: bool) -> dict[str, np.ndarray]:
    dtypes = "fp16,q4f16" if converted else "fp32,q4"
    script = NODE / "folders.mjs"
    script.write_text(SCRIPT)
    words = ["node", str(script), f"{folder.parent.resolve()}/", folder.name, dtypes]
    done = subprocess.run(words, capture_output=True, text=True, cwd=NODE, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "node failed")
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return {name: np.array(values) for name, values in zip(("float", "4 bits"), found.values(), strict=True)}


NODE, BUILDER = Path(), sys.executable
SIDES = ("height", "width", "latent_height", "latent_width", "sample_height", "sample_width")
SIZES = {"kv_cache_dim": 16, "sequence_length": 8, "past_sequence_length": 8, "total_sequence_length": 16}
HEAD = tuple(word for name, size in SIZES.items() for word in ("--dim", f"{name}={size}"))
CACHE = ("--io", "past_*=low", "--io", "present*=low")
SMALL = tuple(word for name in SIDES for word in ("--dim", f"{name}=16"))
CASES = (
    Case("Optimum: T5, encoder and decoders with past", make_t5, use_t5),
    Case("Optimum: Llama with past", make_llama, use_llama),
    Case("Optimum: Llama with past, cache in float16", make_llama, use_llama, CACHE),
    Case("diffusers: Stable Diffusion by Optimum", make_diffusion, use_diffusion, SMALL),
    Case("onnxruntime-genai: Llama", make_genai, use_genai, HEAD),
    Case("onnxruntime-genai: Llama, cache in float16", make_genai, use_genai, CACHE + HEAD),
    Case("transformers.js: DistilBERT, model_fp16 and model_q4f16", make_web, use_web, ("--transformers-js",)),
)  # fmt: skip


def difference(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> str:
    """Words by how many are equal, numbers by the l2 error relative to the first."""
    said = []
    for name, one in before.items():
        other = after[name]
        if one.dtype.kind in "iu":
            said.append(f"{name} {'equal' if np.array_equal(one, other) else f'{np.sum(one != other)} differ'}")
        else:
            error = np.linalg.norm(other.astype(np.float64) - one) / np.linalg.norm(one.astype(np.float64))
            said.append(f"{name} {error:.1e}")
    return ", ".join(said)


def tried(case: Case, number: int, work: Path, python: str) -> tuple[str, ...]:
    """One row of the table."""
    import torch

    source, target = work / f"{number}" / "given", work / f"{number}" / "made"
    source.parent.mkdir(parents=True)
    torch.manual_seed(0)
    with contextlib.redirect_stdout(sys.stderr):
        case.make(source)
        before = case.use(source, False)
    start = time.monotonic()
    words = [python, "-m", "ampgraph", "convert", str(source), "-o", str(target), "--json", *case.options]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if not done.stdout:
        return case.name, "0", "", str(done.returncode), done.stderr.strip()[:80]
    report = json.loads(done.stdout)
    for one in report["models"]:
        print(f"  {one['file']}: {one.get('said') or one.get('error')}", file=sys.stderr)
    counts = ", ".join(f"{count} {state}" for state, count in report["counts"].items() if count)
    print(f"  {time.monotonic() - start:.1f} s", file=sys.stderr)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            seen = difference(before, case.use(target, True))
    except Exception as error:
        seen = f"FAILED: {str(error).strip().splitlines()[0]}"
    return case.name, str(len(report["models"])), counts, str(done.returncode), seen


def main() -> None:
    global NODE, BUILDER
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--ampgraph", required=True)
    given.add_argument("--work", type=Path, required=True)
    given.add_argument("--node", type=Path)
    given.add_argument("--builder", default=sys.executable)
    given.add_argument("--only", default="")
    given.add_argument("-o", "--output", type=Path)
    args = given.parse_args()
    NODE, BUILDER = args.node or Path(), args.builder
    rows = [("folder", "models", "verdicts", "exit", "the library's results, converted against given")]
    rows.append(("---",) * 5)
    for number, case in enumerate(CASES):
        if args.only in case.name and (args.node or case.make is not make_web):
            print(case.name, file=sys.stderr)
            try:
                rows.append(tried(case, number, args.work, args.ampgraph))
            except Exception as error:
                rows.append((case.name, "", "", "", f"not made: {type(error).__name__}: {error}"[:200]))
            print(rows[-1], file=sys.stderr)
    names = ("optimum-onnx", "diffusers", "transformers", "onnxruntime-genai", "onnxruntime", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    if args.node:
        packed = json.loads((args.node / "node_modules/@huggingface/transformers/package.json").read_text())
        versions += f", transformers.js {packed['version']}"
    text = "# Folders, converted and loaded again\n\nMade by `python benchmarks/folders.py`, which says what it does; "
    text += f"with {versions}.\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"
    print(text)
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
