"""Networks of the library transformers as edgesim trains them: tokens in, logits out, nothing fetched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from edgesim.core.errors import ConfigError, EdgesimError
from edgesim.files.reading import check_regular, in_short, quoted
from edgesim.learning.models.build import refuse_differences
from edgesim.learning.models.checkpointing import Checkpointed
from edgesim.learning.models.quantised import Codes, QuantisedLinear

if TYPE_CHECKING:
    from edgesim.learning.models.hugging_face import HuggingFaceModel, LoraKeys

_DROPS = ("dropout", "pdrop", "dropout_prob")  # ends of the names of dropout probabilities
_MAKERS = {
    "causal_lm": transformers.AutoModelForCausalLM,
    "classification": transformers.AutoModelForSequenceClassification,
}


class Transformer(nn.Module):
    """A network of transformers that reads tokens, as integers or floats, (batch, positions).

    Which positions attend to which is worked out here and not by the library, whose way depends on values of tokens.
    """

    def __init__(self, network: Any, causal: bool, outputs: int, padding: int | None, head: str) -> None:
        """`outputs`: tokens of the data, or classes. `head`: linear layer that reads the last token; "": none."""
        super().__init__()
        self.network = network
        self.dtype = network.get_input_embeddings().weight.dtype  # of activations
        self.turned = "rope_parameters" in network.config.to_dict()  # positions turn vectors; else a table has them
        self.causal, self.outputs, self.padding, self.head = causal, outputs, padding, head
        self.per_token = causal and not head

    def forward(self, x_BP: Tensor) -> Tensor:
        """Return the logits of the token after each position, (batch, tokens, positions), or (batch, classes)."""
        tokens_BP = x_BP.to(torch.int64)
        given = {"input_ids": tokens_BP, "attention_mask": self._mask(tokens_BP)}
        if not self.turned:  # a row for each sample, so that a cohort finds the samples of each device
            given["position_ids"] = torch.arange(tokens_BP.shape[1], device=tokens_BP.device).expand_as(tokens_BP)
        if self.per_token:
            logits_BPV = self.network(**given, use_cache=False).logits
            return logits_BPV[..., : self.outputs].transpose(1, 2).float()
        if not self.head:
            logits: Tensor = self.network(**given).logits
            return logits.float()
        hidden_BPE = self.network.base_model(**given, use_cache=False).last_hidden_state
        logits = self.network.get_submodule(self.head)(hidden_BPE)
        return self._last(logits, tokens_BP).float()

    def _mask(self, tokens_BP: Tensor) -> Tensor:
        """Return the mask added to scores of attention, 0 or the least float, (1 or batch, 1, positions, positions)."""
        positions = tokens_BP.shape[1]
        hidden = torch.zeros(1, 1, positions, positions, dtype=torch.bool, device=tokens_BP.device)
        if self.causal:
            hidden = torch.ones_like(hidden).triu(1)
        if self.padding is not None:
            hidden = hidden | (tokens_BP == self.padding)[:, None, None, :]
        place = "cuda" if tokens_BP.is_cuda else "cpu"
        dtype = torch.get_autocast_dtype(place) if torch.is_autocast_enabled(place) else self.dtype
        return torch.zeros_like(hidden, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)

    def _last(self, values_BPC: Tensor, tokens_BP: Tensor) -> Tensor:
        """Return the values at the last token of each sample that is not padding, or at position 0, (batch, C)."""
        if self.padding is None:
            return values_BPC[:, -1]
        places = torch.arange(tokens_BP.shape[1], device=tokens_BP.device)
        last_B = torch.where(tokens_BP == self.padding, 0, places).amax(1)
        one_BP1 = (places == last_B[:, None])[:, :, None].to(values_BPC.dtype)
        return (values_BPC * one_BP1).sum(1)


class ImageTransformer(nn.Module):
    """A network of transformers that reads images (batch, channels, height, width)."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (batch, classes)."""
        logits: Tensor = self.network(pixel_values=x).logits
        return logits.float()


def built(plugin: HuggingFaceModel, table: Mapping[str, Any], input_shape: Sequence[int], classes: int) -> nn.Module:
    """Return the network of a plug-in, whose frozen parameters take no gradient. `table`: entries of a config.json.

    Raises ConfigError if the library cannot build it, or inputs, vocabulary, adapters or weights do not fit.
    """
    if plugin.dtype != "float32" and plugin.lora is None:
        raise ConfigError(f"model.dtype: {plugin.dtype} is for frozen weights; give model.lora, or use float32")
    images = "image_size" in table
    with _quiet():
        config = _config(plugin, table, input_shape, classes, images)
        maker: Any = _MAKERS[plugin.task]
        if images:
            maker = transformers.AutoModelForImageClassification
        try:
            network = _network(plugin, config, maker)
        except EdgesimError:
            raise
        except Exception as error:  # the library raises errors of any type
            raise ConfigError(f"model.config: {plugin.config}: cannot be built: {in_short(error)}") from error
        body = network.base_model
        children = [name for name, child in network.named_children() if child is not body]
        heads = children if plugin.task == "classification" else []
        if plugin.lora is not None:
            _adapt(network, plugin.lora, config.model_type, heads)
    if plugin.dtype != "float32":
        halved = torch.float16 if plugin.dtype == "float16" else torch.bfloat16
        if plugin.dtype != "bfloat16" and plugin.dtype != "float16":
            _quantise(network, plugin.dtype)
        frozen = [
            value
            for layer in network.modules()
            for name, value in layer.named_parameters(recurse=False)
            if not value.requires_grad and (name == "bias" or not isinstance(layer, QuantisedLinear))
        ]
        for value in frozen:
            value.data = value.data.to(halved)
        for layer in map(network.get_submodule, heads):
            layer.register_forward_pre_hook(_as_its_weights)
    _freeze_constants(network)
    if plugin.gradient_checkpointing and not checkpoint(network):
        raise ConfigError(
            f"model.gradient_checkpointing: {plugin.config} has no blocks that transformers can checkpoint"
        )
    if images:
        return ImageTransformer(network)
    head = "score" if "score" in heads else ""  # the library's name of the head of all decoders
    return Transformer(network, plugin.task == "causal_lm" or head != "", classes, plugin.padding, head)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the library from writing hints and progress bars to the terminal."""
    log = transformers.utils.logging
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _config(
    plugin: HuggingFaceModel, table: Mapping[str, Any], input_shape: Sequence[int], classes: int, images: bool
) -> Any:
    """Return the configuration with the plug-in's sizes and the data's. Raises ConfigError if they do not fit."""
    entries, model_type = dict(table), str(table["model_type"])
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        raise ConfigError(f"model.config: transformers {transformers.__version__} has no type {quoted(model_type)}")
    cls = known[model_type]
    given = "x".join(map(str, input_shape))
    if images != (len(input_shape) == 3):
        wanted = "images" if images else "rows of tokens"
        raise ConfigError(f"model.config: {plugin.config} reads {wanted}, data gives {given}")
    if images and plugin.task != "classification":
        raise ConfigError(f"model.task: {plugin.config} reads images; use 'classification'")
    for name, value in (("num_hidden_layers", plugin.layers), ("vocab_size", plugin.vocabulary)):
        if value is not None:
            entries[cls.attribute_map.get(name, name)] = value
    if plugin.layers is not None and "layer_types" in entries:
        entries["layer_types"] = entries["layer_types"][: plugin.layers]
    if images:
        channels, height, width = input_shape
        if height != width:
            raise ConfigError(f"model.config: {plugin.config} reads square images, data gives {given}")
        entries |= {"num_channels": channels, "image_size": height}
    if plugin.task == "classification":
        entries |= {"num_labels": classes}
        entries.pop("id2label", None)
        entries.pop("label2id", None)
    try:
        config = cls.from_dict(entries)
        drops = [name for name, value in config.to_dict().items() if name.endswith(_DROPS) and value is not None]
        for name in drops if plugin.dropout is not None else []:
            setattr(config, name, plugin.dropout)
    except Exception as error:  # the library checks entries in ways of its own
        raise ConfigError(f"model.config: {plugin.config}: not a configuration: {in_short(error)}") from error
    if images:
        return config
    facts = config.to_dict()
    if plugin.task == "causal_lm" and classes > config.vocab_size:
        raise ConfigError(f"model.vocabulary: the model has {config.vocab_size} tokens, the data set has {classes}")
    if plugin.task == "causal_lm" and type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        raise ConfigError(f"model.task: {plugin.config} reads a text in both directions; use 'classification'")
    if plugin.padding is not None and plugin.padding >= config.vocab_size:
        raise ConfigError(f"model.padding: must be below the {config.vocab_size} tokens, found {plugin.padding}")
    for name in (cls.attribute_map.get("max_position_embeddings", "max_position_embeddings"), "sliding_window"):
        most = facts.get(name)
        if isinstance(most, int) and input_shape[0] > most:
            raise ConfigError(f"model.config: {plugin.config} reads {most} tokens at most ({name}), data gives {given}")
    return config


def _network(plugin: HuggingFaceModel, config: Any, maker: Any) -> Any:
    """Return the library's network in float32, with the weights of the folder, or drawn ones where there are none."""
    options = {"attn_implementation": plugin.attention, "dtype": torch.float32}
    if not plugin.weight_files or torch.get_default_device().type == "meta":  # only its sizes are asked for
        return maker.from_config(config, **options)
    for path in plugin.weight_files:
        check_regular(path, ConfigError)
    folder = plugin.weight_files[0].parent
    try:
        network, found = maker.from_pretrained(
            folder, config=config, local_files_only=True, use_safetensors=True, output_loading_info=True,
            ignore_mismatched_sizes=True, **options,
        )  # fmt: skip
    except Exception as error:  # a damaged file, or an index that names no file
        raise ConfigError(f"model.config: {folder}: cannot be loaded: {in_short(error)}") from error
    heads = tuple(f"{name}." for name, child in network.named_children() if child is not network.base_model)
    heads = heads if plugin.task == "classification" else ()  # a new head is drawn
    missing = [f"{name} is missing" for name in sorted(found["missing_keys"]) if not name.startswith(heads)]
    unknown = [f"{name} is not in the model" for name in sorted(found["unexpected_keys"])]
    wrong = [
        f"{name} is {tuple(have)}, the model has {tuple(want)}"
        for name, have, want in sorted(found["mismatched_keys"])
        if not name.startswith(heads)
    ]
    if plugin.task == "classification":  # the head of another task
        unknown = [text for text in unknown if text.startswith(f"{network.base_model_prefix}.")]
    refuse_differences(f"model.config: {folder}", missing + unknown + wrong)
    return network.train()  # as drawn ones are; the library loads networks for a test, which checkpoints no block


def _adapt(network: Any, lora: LoraKeys, model_type: str, heads: Sequence[str]) -> None:
    """Insert adapters, which are float32. Everything else but the layers `heads` takes no gradient from now on."""
    from peft import LoraConfig, inject_adapter_in_model
    from peft.utils.constants import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as usual
    from transformers.pytorch_utils import Conv1D

    layers = dict(network.named_modules())
    targets = list(lora.targets or usual.get(model_type, ()))
    if not targets:
        raise ConfigError(f"model.lora.targets: peft lists no layers for {model_type}; name some, such as 'q_proj'")
    linear = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear | Conv1D)}
    for target in targets:
        if not any(name == target or name.endswith(f".{target}") for name in linear):
            names = sorted({name.rpartition(".")[2] for name in linear})
            raise ConfigError(f"model.lora.targets: no layer is called {quoted(target)} (layers: {', '.join(names)})")
    config = LoraConfig(
        r=lora.r, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets,
        fan_in_fan_out=any(isinstance(layer, Conv1D) for layer in linear.values()),
    )  # fmt: skip
    inject_adapter_in_model(config, network)
    for name, value in network.named_parameters():
        value.requires_grad_(".lora_" in name or name.partition(".")[0] in heads)


def _quantise(network: Any, codes: Codes) -> None:
    """Hold the weights of frozen linear layers as codes, except those of the output layer or that an embedding shares.

    The product of GPT-2's layers is turned, so that their codes lie as those of other linear layers.
    """
    from transformers.pytorch_utils import Conv1D

    output = network.get_output_embeddings()
    kept = {id(table.weight) for table in network.modules() if isinstance(table, nn.Embedding)}
    for name, layer in list(network.named_modules()):
        if not isinstance(layer, nn.Linear | Conv1D) or layer is output or layer.weight.requires_grad:
            continue
        if id(layer.weight) not in kept:
            weight = layer.weight.T if isinstance(layer, Conv1D) else layer.weight
            path, _, own = name.rpartition(".")
            setattr(network.get_submodule(path), own, QuantisedLinear(weight, layer.bias, codes))


def checkpoint(network: nn.Module) -> bool:
    """Let the outermost blocks of a network run again in backward. Return False if the library marks none."""
    blocks = [layer for layer in network.modules() if isinstance(layer, GradientCheckpointingLayer)]
    within = {id(inner) for block in blocks for inner in block.modules() if inner is not block}
    for block in blocks:
        if id(block) not in within:
            block.gradient_checkpointing = True
            block._gradient_checkpointing_func = Checkpointed(block)
    return bool(blocks)


def _as_its_weights(layer: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
    """Convert the inputs of a layer that trains in float32 after layers of another type."""
    weight = next(layer.parameters(), None)  # a dropout layer has none
    return given if weight is None else tuple(value.to(weight.dtype) for value in given)


def _freeze_constants(network: nn.Module) -> None:
    """Make frozen parameters of floats that the network computes from its configuration, such as rotary frequencies."""
    for layer in network.modules():
        for name in sorted(layer._non_persistent_buffers_set):
            value = layer.get_buffer(name)
            if value.is_floating_point():
                delattr(layer, name)
                layer.register_parameter(name, nn.Parameter(value, requires_grad=False))
