"""Which tensors a Triton model takes and gives, read from its metadata and configuration. No I/O.

TensorRT-LLM's model repositories come in two families, told apart by their tensors:

    classic   `ensemble` and `tensorrt_llm_bls`: `max_tokens`, `stop_words`, ...; a batch dimension as a rule
    llmapi    `tensorrt_llm`: `sampling_param_max_tokens`, `sampling_param_stop`, ...; none

Within a family releases differ in what they have, so a tensor is sent only where the model has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from engines.errors import Misconfigured

__all__ = ["Layout", "ModelInfo", "Tensor", "read_layout", "related"]

Family = Literal["classic", "llmapi"]


class Tensor(msgspec.Struct, frozen=True):
    """One input or output of a model. `shape` is the wire's; -1 is any size."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A model's metadata and configuration, as far as they matter here.

    Attributes:
        decoupled: may give any number of responses; of an ensemble its steps say it.
        steps: names of an ensemble's models. parameters: of the configuration; what was left unset is left out.
    """

    name: str
    inputs: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    platform: str = ""
    max_batch_size: int = 0
    decoupled: bool = False
    steps: tuple[str, ...] = ()
    parameters: Mapping[str, str] = {}


# What a field of a request is called in each family, the newest name first.
_NAMES: dict[Family, dict[str, tuple[str, ...]]] = {
    "classic": {
        "prompt": ("text_input",),
        "max_tokens": ("max_tokens",),
        "stream": ("stream",),
        "stop": ("stop_words",),
        "bad_words": ("bad_words",),
        "temperature": ("temperature",),
        "top_p": ("top_p",),
        "top_k": ("top_k",),
        "seed": ("seed", "random_seed"),
        "min_tokens": ("min_tokens", "min_length"),
        "repetition_penalty": ("repetition_penalty",),
        "presence_penalty": ("presence_penalty",),
        "frequency_penalty": ("frequency_penalty",),
        "exclude_prompt": ("exclude_input_in_output",),
        "count_input": ("return_num_input_tokens",),
        "count_output": ("return_num_output_tokens",),
        "guide_type": ("guided_decoding_guide_type",),
        "guide": ("guided_decoding_guide",),
    },
    "llmapi": {
        "prompt": ("text_input",),
        "max_tokens": ("sampling_param_max_tokens",),
        "stream": ("streaming",),
        "stop": ("sampling_param_stop",),
        "temperature": ("sampling_param_temperature",),
        "top_p": ("sampling_param_top_p",),
        "top_k": ("sampling_param_top_k",),
        "seed": ("sampling_param_seed",),
        "presence_penalty": ("sampling_param_presence_penalty",),
        "frequency_penalty": ("sampling_param_frequency_penalty",),
        "exclude_prompt": ("sampling_param_exclude_input_from_output",),
        "ask_finish": ("return_finish_reason",),
    },
}


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How to speak to one model.

    Attributes:
        inputs: the model's tensors by what they mean here (see `_NAMES`).
        text: the output that holds the text; the others are "" where the model has none.
        batched: the shapes on the wire begin with the batch's size.
        decoupled: it can stream.
        cumulative: every response of a stream holds the whole text so far.
        echoes: without `exclude_prompt` a whole answer may begin with the prompt.
        adds_bos: its tokenizer puts special tokens before the prompt.
        guided: it can be held to a JSON schema.
        stopper: the model inside that takes `stop` with a request's id, where cancelling the outer one does not
            reach it (an ensemble); its tensors.
    """

    model: str
    family: Family
    inputs: Mapping[str, Tensor]
    text: str = "text_output"
    input_count: str = ""
    output_count: str = ""
    finish: str = ""
    batched: bool = False
    decoupled: bool = False
    cumulative: bool = False
    echoes: bool = True
    adds_bos: bool = True
    guided: bool = False
    stopper: str = ""
    stop_inputs: tuple[Tensor, ...] = ()

    @property
    def outputs(self) -> list[str]:
        """The outputs to ask for. Others, such as logits, would only be in the way."""
        return [name for name in (self.text, self.input_count, self.output_count, self.finish) if name]


def related(model: ModelInfo) -> list[str]:
    """The names of the models whose configurations say more of this one: an ensemble's steps, the core behind a BLS."""
    inner = model.parameters.get("tensorrt_llm_model_name", "")
    return [*dict.fromkeys((*model.steps, *([inner] if inner and inner != model.name else [])))]


def read_layout(
    model: ModelInfo,
    others: Mapping[str, ModelInfo] | None = None,
    *,
    text: Literal["delta", "cumulative"] | None = None,
    guided: bool | None = None,
) -> Layout:
    """How to speak to `model`.

    Args:
        others: the models of `related`, as far as they are there.
        text, guided: what the operator declares, in place of what the configuration suggests.

    Raises Misconfigured where the model takes no text, or gives none.
    """
    inputs = {tensor.name: tensor for tensor in model.inputs}
    outputs = {tensor.name for tensor in model.outputs}
    family: Family = "llmapi" if any(name.startswith("sampling_param_") for name in inputs) else "classic"
    named = {
        meaning: inputs[found]
        for meaning, names in _NAMES[family].items()
        if (found := next((name for name in names if name in inputs), None)) is not None
    }
    if "prompt" not in named or "text_output" not in outputs:
        raise Misconfigured(
            "The engine's model does not take text and give text.",
            detail=f"model {model.name!r} has inputs {sorted(inputs)} and outputs {sorted(outputs)}",
        )
    known = others or {}
    stopper = _stopper(model, known)
    return Layout(
        model=model.name,
        family=family,
        inputs=named,
        input_count="num_input_tokens" if "count_input" in named and "num_input_tokens" in outputs else "",
        output_count="num_output_tokens" if "count_output" in named and "num_output_tokens" in outputs else "",
        finish="finish_reason" if "ask_finish" in named and "finish_reason" in outputs else "",
        batched=model.max_batch_size > 0,
        decoupled=model.decoupled or any(known[step].decoupled for step in model.steps if step in known),
        cumulative=text == "cumulative" if text is not None else _accumulates(model, family),
        echoes=_parameter(model, known, "exclude_input_in_output") != "true",
        adds_bos=_parameter(model, known, "add_special_tokens") != "false",
        guided=_can_guide(model, known, named) if guided is None else guided and "guide" in named,
        stopper=stopper.name if stopper is not None else "",
        stop_inputs=stopper.inputs if stopper is not None else (),
    )


def _accumulates(model: ModelInfo, family: Family) -> bool:
    """The LLM API gives its text whole each time; the business logic does where it is told to."""
    return family == "llmapi" or model.parameters.get("accumulate_tokens", "").lower() == "true"


def _can_guide(model: ModelInfo, others: Mapping[str, ModelInfo], named: Mapping[str, Tensor]) -> bool:
    return "guide" in named and "guide_type" in named and bool(_parameter(model, others, "guided_decoding_backend"))


def _parameter(model: ModelInfo, others: Mapping[str, ModelInfo], name: str) -> str:
    values = (info.parameters.get(name, "") for info in _all(model, others))
    return next((value for value in values if value), "").lower()


def _all(model: ModelInfo, others: Mapping[str, ModelInfo]) -> Iterator[ModelInfo]:
    yield model
    yield from others.values()


def _stopper(model: ModelInfo, others: Mapping[str, ModelInfo]) -> ModelInfo | None:
    """The step of an ensemble that can be told to stop a request by the id that it shares with the ensemble's."""
    for step in model.steps:
        inner = others.get(step)
        if inner is not None and {"stop", "input_ids", "request_output_len"} <= {one.name for one in inner.inputs}:
            return inner
    return None
