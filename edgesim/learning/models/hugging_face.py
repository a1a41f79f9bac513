"""Transformers of the library of that name, with or without LoRA adapters. Nothing is downloaded.

Samples are tokens (batch, positions), or images where the architecture reads images. Outputs are those of objective
`next_token`, (batch, tokens, positions), or logits (batch, classes).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Lt
from pydantic import BeforeValidator, Strict

from edgesim.config.plugins import meant
from edgesim.config.strict_table import StrictTable
from edgesim.config.toml_file import FileText, read_toml
from edgesim.core.errors import ConfigError
from edgesim.core.limits import Count, CountOrZero, Depth, PositiveFactor
from edgesim.files.reading import in_short, quoted, read_text, reading
from edgesim.learning.models.base import ModelPlugin
from edgesim.learning.objectives.base import Objective
from edgesim.learning.objectives.classification import CLASSIFICATION
from edgesim.learning.objectives.next_token import NextToken

if TYPE_CHECKING:
    from torch import nn

_NEXT_TOKEN = NextToken()
_LONGEST_NATIVE = 1024  # tokens of a sample where no data set says it; GPT-2's context


def architectures() -> dict[str, dict[str, Any]]:
    """Return the entries of a config.json of each preset, by its name."""
    return read_toml(files("edgesim.learning.models") / "architectures.toml")


def _folder_or_preset(given: Any) -> Any:
    """Return the name of a preset unchanged, and any other name as the path of a folder beside the scenario's file."""
    return str(given.path()) if isinstance(given, FileText) and given not in architectures() else given


class LoraKeys(StrictTable):
    """Low-rank adapters: a layer's weights W act as W + alpha / r B A, where only A (r rows) and B (r columns) train.

    A is drawn as a linear layer's weights are (Kaiming, uniform) and B starts at 0. Source: Hu et al., "LoRA: Low-Rank
    Adaptation of Large Language Models" (ICLR 2022), section 4.1, through the library peft.
    """

    r: Count = 8  # rank of the product B A
    alpha: PositiveFactor = 16.0  # the product counts alpha / r times
    targets: Annotated[
        tuple[str, ...], Strict(False)
    ] = ()  # names of adapted layers, such as "q_proj"; none: those that peft lists for the type
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.0  # of the adapters' inputs


@dataclass(frozen=True, kw_only=True)
class HuggingFaceModel(ModelPlugin):
    """A transformer by the name of its architecture, or from a local folder with its weights; LoRA if wanted.

    Without `lora` all weights train. With it only the adapters train, and the head of a classification. A decoder
    classifies by the last token that is not padding. Needs edgesim[llm].
    """

    config: Annotated[str, BeforeValidator(_folder_or_preset)] = "tiny-gpt2"  # a preset, or a folder with config.json
    """A preset, such as `gpt2`, `llama-3.2-1b`, `bert-base` or `vit-b-16`, whose weights are drawn. Or a folder with a
    config.json: its weights in safetensors are loaded, and drawn if there are none.
    """
    task: Literal["causal_lm", "classification"] = "causal_lm"  # predict each next token, or one class for each sample
    lora: LoraKeys | None = None  # low-rank adapters: { r, alpha, targets, dropout }; None: all weights train
    dtype: Literal["float32", "bfloat16", "float16", "int8", "int4", "nf4"] = (
        "float32"  # of frozen weights; weights that train are float32
    )
    """Type in which frozen weights are held. All but `float32` need `lora`.

    `bfloat16` and `float16`: activations have this type too. No loss is scaled, so that in `float16` small gradients
    become 0. `int8`, `int4` and `nf4`: frozen linear layers, except the output layer, hold codes of 8 or 4 bits with a
    float32 scale for each 64 weights, and all other frozen weights and the activations are bfloat16. `nf4` has the
    levels of QLoRA (Dettmers et al., NeurIPS 2023), without its double quantisation.
    """
    gradient_checkpointing: bool = False  # blocks keep their inputs alone and run again in backward: less memory
    attention: Literal["eager", "sdpa"] = "eager"  # plain products, or PyTorch's fused attention
    padding: CountOrZero | None = None  # token that fills up short samples, to which others do not attend
    layers: Depth | None = None  # blocks instead of the architecture's
    vocabulary: Count | None = None  # tokens of the embedding instead of the architecture's
    dropout: Annotated[float, Ge(0), Lt(1)] | None = None  # all rates instead of the architecture's

    @property
    def native_input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """Shape of a sample of the architecture: an image, or 1024 tokens at most."""
        table = self.table()
        if "image_size" in table:
            return (int(table.get("num_channels", 3)), int(table["image_size"]), int(table["image_size"]))
        positions = table.get("max_position_embeddings", table.get("n_positions", _LONGEST_NATIVE))
        return (min(int(positions), _LONGEST_NATIVE),)

    @property
    def native_classes(self) -> int:  # type: ignore[override]
        """Tokens of the vocabulary, or classes: 1000 of images, as ImageNet, and 2 of texts."""
        table = self.table()
        if self.task == "causal_lm" and "vocab_size" in table:
            return int(self.vocabulary or table["vocab_size"])
        return 1000 if "image_size" in table else 2

    @property
    def native_objective(self) -> Objective:  # type: ignore[override]
        """The objective that the outputs fit."""
        return _NEXT_TOKEN if self.task == "causal_lm" else CLASSIFICATION

    @property
    def folder(self) -> Path | None:
        """The folder with a config.json; None for a preset."""
        return None if self.config in architectures() else Path(self.config)

    @property
    def weight_files(self) -> tuple[Path, ...]:
        """Files with the weights in the folder, sorted; none if the weights are drawn."""
        return () if self.folder is None else tuple(sorted(self.folder.glob("*.safetensors")))

    @property
    def loads_weights(self) -> bool:
        """True if weights come from files, so that only building the network tells if they fit."""
        return super().loads_weights or bool(self.weight_files)

    def priced_by(self, keys: Mapping[str, Any]) -> dict[str, Any]:
        """Return its keys with the file of the architecture in place of the folder, whose weights have no price."""
        found, folder = super().priced_by(keys), self.folder
        return found if folder is None else {**found, "config": str(folder.absolute() / "config.json")}

    @property
    def lighter(self) -> Sequence[tuple[str, Mapping[str, Any]]]:
        """Low-rank adapters on a frozen base, a base of half the bytes, and checkpointed blocks."""
        adapted = "" if self.lora else "model.lora = { r = 8 }"
        found: list[tuple[str, Mapping[str, Any]]] = [] if self.lora else [(adapted, {"lora": {"r": 8}})]
        if self.dtype == "float32":
            smaller, keys = 'model.dtype = "bfloat16"', {} if self.lora else {"lora": {"r": 8}}
            found.append((f"{adapted} and {smaller}" if adapted else smaller, {**keys, "dtype": "bfloat16"}))
        if not self.gradient_checkpointing:
            found.append(("model.gradient_checkpointing = true", {"gradient_checkpointing": True}))
        return found

    def keep_less(self, network: nn.Module) -> None:
        """Checkpoint the blocks of the transformer."""
        from edgesim.learning.models.hugging_face_modules import checkpoint

        checkpoint(network)

    def table(self) -> Mapping[str, Any]:
        """Return the entries of the preset or of the folder's config.json. Raises ConfigError if there is neither."""
        presets, folder = architectures(), self.folder
        if folder is None:
            return presets[self.config]
        if not folder.is_dir():
            hint = meant(folder.name, presets)
            raise ConfigError(
                f"model.config: no folder {quoted(self.config)} and no preset of this name{hint} "
                f"(presets: {', '.join(presets)})"
            )
        path = folder / "config.json"
        with reading(f"model.config: {path}", "JSON file", ConfigError):
            table = json.loads(read_text(path, ConfigError))
        if not isinstance(table, dict) or not isinstance(table.get("model_type"), str):
            raise ConfigError(f"model.config: {path} must be a table with a model_type, such as 'gpt2'")
        return table

    def build(self, input_shape: Sequence[int], classes: int) -> nn.Module:
        """Return the network; see ModelPlugin.build. Raises ConfigError if libraries are missing or sizes do not fit.

        `classes`: tokens of the data set, or classes. An output with more tokens is cut to those of the data.
        """
        table = self.table()
        try:
            if self.lora is not None:
                import peft  # noqa: F401 - here, so that its absence is reported as that of transformers
            from edgesim.learning.models.hugging_face_modules import built  # which loads transformers
        except ImportError as error:
            raise ConfigError(
                f'model.name: hf needs transformers and peft; pip install "edgesim[llm]" ({in_short(error)})'
            ) from error
        return built(self, table, input_shape, classes)


PLUGINS: dict[str, type[ModelPlugin]] = {"hf": HuggingFaceModel}
