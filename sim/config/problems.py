"""Mistakes in input: the path to a key and one sentence; keys and values in few words.

pydantic checks the models; ``explain`` turns its errors into mistakes. To point at a key below its
own model, a validator raises ``mistake(sentence, *keys)``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from ..errors import InputError, did_you_mean, quote, shorten
from ..foreign import HEAD_BYTES, describe_foreign

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Mistake:
    """A mistake and its place: keys and list indices from the top of the document."""

    at: KeyPath
    message: str

    def __str__(self) -> str:
        return (f"{join_keys(self.at)}: " if self.at else "") + one_line(self.message)


def mistake(message: str, *at: str | int) -> PydanticCustomError:
    """Error for a pydantic validator to raise; the path ``at`` is relative to the validated value."""
    return _error([Mistake(at, message)])


def raise_mistakes(mistakes: Iterable[Mistake]) -> None:
    """Raise one error with all of ``mistakes``, if any; for pydantic validators, like ``mistake``."""
    if every := list(mistakes):
        raise _error(every)


def _error(mistakes: Sequence[Mistake]) -> PydanticCustomError:
    return PydanticCustomError("mistakes", "{text}", {"text": mistakes[0].message, "mistakes": mistakes})


@contextmanager
def place_errors(*at: str | int) -> Iterator[None]:
    """Place an ``InputError`` of the block at a key, as a mistake, and its mistakes below that key."""
    try:
        yield
    except InputError as error:
        raise mistake(str(error), *at) from None
    except PydanticCustomError as error:
        inner = (error.context or {}).get("mistakes")
        if inner is None:
            raise
        raise _error([Mistake(at + each.at, each.message) for each in inner]) from None


def refuse_foreign(path: Path) -> None:
    """Raise ``InputError`` for a file of another tool; it names the command that reads it."""
    head = b""
    with suppress(OSError, ValueError):
        if path.is_file():  # a pipe may have no writer
            with path.open("rb") as file:
                head = file.read(HEAD_BYTES)
    if sentence := describe_foreign(one_line(str(path)), head):
        raise InputError(sentence)


def unknown_key(key: str, choices: Iterable[str]) -> str:
    """Error sentence for an unknown key, with what to write instead or the nearest of ``choices``."""
    known = list(choices)
    hint = answer_word(key) or (did_you_mean(key, known) if known else "nothing can be set here")
    return f"unknown key; {hint}"


def printable(text: str) -> str:
    """Escape characters of ``text`` that move a terminal's cursor or turn its letters around."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(text: str, limit: int = 500) -> str:
    """Fit ``text`` into one line of an error: no control characters, at most ``limit`` characters."""
    out = printable(text[: limit + 1])
    return out if len(out) <= limit else out[: limit - 3] + "..."


MAX_LINES: Final = 10
MAX_LINE: Final = 1000
"""Letters of a printed line."""


def format_message(error: BaseException) -> str:
    """Text of any error for output and records: a few printable lines."""
    lines = str(error).splitlines()
    return "\n".join(one_line(line, MAX_LINE) for line in lines[:MAX_LINES])


def join_keys(at: KeyPath) -> str:
    """Dotted form of a path of keys: ``schemes.0.local_sgd.period``."""
    return ".".join(one_line(str(part), 60) for part in at)


def format_value(value: object) -> str:
    """Describe a value for use in a sentence."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case str():
            return f"the text '{one_line(value, 40)}'"
        case int() | float():
            return shorten(value)
        case Mapping():
            return "a mapping"
        case Sequence():
            return "a list"
        case _:
            return f"a value of type {shorten(type(value).__name__)}"


def explain(error: ValidationError, model: type[BaseModel], data: object) -> list[Mistake]:
    """Mistakes for pydantic's errors in ``data``; errors at one key are joined by "or".

    Unknown keys are compared with the fields of ``model``; alternatives of a union are no keys of ``data``.
    """
    messages: dict[KeyPath, list[str]] = {}
    for details in error.errors(include_url=False):
        if details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]:
            continue  # it only repeats others: pydantic does not count entries that are wrong themselves
        at = _keys_only(details["loc"], data, keep_last=details["type"] == "missing")
        if details["type"] == "mistakes":
            for inner in details["ctx"]["mistakes"]:
                messages.setdefault(at + inner.at, []).append(inner.message)
        elif details["type"] == "extra_forbidden":
            choices = _fields_at(model, at[:-1])
            messages.setdefault(at, []).append(unknown_key(str(at[-1]), choices))
        else:
            messages.setdefault(at, []).append(_sentence(details))
    return [_in_file(at, ", or ".join(dict.fromkeys(texts)), data) for at, texts in messages.items()]


def _in_file(at: KeyPath, text: str, data: Any) -> Mistake:
    """A mistake; it names the file where ``at`` is in a file that ``data`` names."""
    for number, part in enumerate((*at, "")):
        if isinstance(data, str) and data.endswith((".csv", ".json", ".graphml")) and data not in text:
            inside = "".join(f"{one_line(str(key), 60)}: " for key in at[number:])
            return Mistake(at[:number], f"{data}: {inside}{text}")
        data = data[part] if isinstance(data, Mapping) and part in data else ()
    return Mistake(at, text)


def _keys_only(location: KeyPath, data: object, keep_last: bool) -> KeyPath:
    """Parts of pydantic's location that are keys or indices of ``data``."""
    out: list[str | int] = []
    for number, part in enumerate(location):
        if (isinstance(data, Mapping) and part in data) or (
            isinstance(data, Sequence) and isinstance(part, int) and part < len(data)
        ):
            data = data[part]  # type: ignore[index]
        elif not (keep_last and number == len(location) - 1):
            continue
        out.append(part)
    return tuple(out)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _fields_at(model: type[BaseModel], at: KeyPath) -> set[str]:
    models = [model]
    for part in at:
        if isinstance(part, str):
            fields = [known.model_fields[part] for known in models if part in known.model_fields]
            models = [inner for field in fields for inner in _models_in(field.annotation)] or models
    return {name for known in models for name in known.model_fields}


_COMPARED: Final = {
    "greater_than": ("more than", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("less than", "lt"),
    "less_than_equal": ("at most", "le"),
}
_WANTED: Final = {
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    **dict.fromkeys(("list_type", "tuple_type", "frozen_set_type"), "a list"),
    **dict.fromkeys(
        ("dict_type", "mapping_type", "model_type", "model_attributes_type"), "a mapping of keys to values"
    ),
    "string_type": "text",
}
_TEMPLATES: Final = {
    "missing": "is missing",
    "quantity": "{message}",
    "string_too_long": "has {letters} letters; it takes at most {max_length}",
    "too_long": "has {actual_length} entries; it takes at most {max_length}",
    "too_short": "has {actual_length} entries; it needs at least {min_length}",
    "value_error": "{error}",
}


def _sentence(details: ErrorDetails) -> str:
    kind, value, context = details["type"], details.get("input"), details.get("ctx", {})
    if kind in _WANTED:
        answer = answer_word(value) if isinstance(value, str) else ""
        return f"must be {_WANTED[kind]}, not {format_value(value)}" + (answer and f"; {answer}")
    if kind in _COMPARED:
        words, key = _COMPARED[kind]
        written = quote(value) if isinstance(value, str) else format_value(value)
        limit = context[key]
        shown = str(limit) if isinstance(limit, int) else f"{limit:g}"
        return f"must be {words} {shown}, not {written}"
    if kind in _TEMPLATES:
        return _TEMPLATES[kind].format(letters=len(str(value)), **context)
    if kind == "literal_error":
        choices = re.findall(r"'([^']+)'", str(context["expected"]))
        if isinstance(value, str):
            return f"unknown choice {quote(value)}; {answer_word(value) or did_you_mean(value, choices)}"
        return f"must be one of {', '.join(choices)}, not {format_value(value)}"
    return f"{format_value(value)} is not valid here"


_OTHER_WORDS: Final = {
    "nosync gradientaccumulation gradientaccumulationsteps accumulationsteps microbatches": (
        "write 'workload: {accumulate: 4}': batches per step, of which the last one averages"
    ),
    "rtt roundtrip roundtriptime ping": "latencies are one-way: write half of the round trip as 'latency' "
    "('paceline import' reads the output of ping)",
    "loss packetloss lossrate": "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'",
    "fp16 bf16 half amp": "averages in 16 bits are 'compression: {fp16: true}' or 'bf16' of a scheme; "
    "computing in 16 bits is a shorter compute.time",
    "int8 fp8 8bit": "write 'compression: {qsgd: {bits: 8}}': codes of 8 bits",
    "join": "nothing to write: batches run on across epochs, so no worker has fewer; a worker that leaves is "
    "'cluster: {stragglers: [{workers: [3], at: 100 steps, crash: true}]}'",
    "bucketcapmb": "write 'all_reduce: {overlap: true, bucket: 25 MiB}'",
    "reshardafterforward": "write 'sharded: {reshard: false}' where a unit is kept after its forward pass",
    "shardingstrategy zerostage": "write 'sharded: {shard: full}', 'gradients' or 'optimizer' for stage 3, 2 "
    "or 1; 'inside: hosts' for hybrid shards",
    "paramdtype reducedtype mixedprecision": "write 'workload: {precision: bf16, payload: 14 GB}', and as "
    "'gradients' of sharded 'float32' where these are reduced in single precision",
    "activationcheckpointing gradientcheckpointing recompute checkpointactivations": "write 'workload: "
    "{layer_profile: {preset: llama-2-7b, recompute: true}}'; a measured compute.time holds it already",
    "clip clipgradnorm gradclip maxgradnorm": "write 'workload: {optimizer: {clip: 1.0}}'",
    "ncclalgo": "write nccl_ring or nccl_tree as 'all_reduce' of 'collectives', and nccl as 'transport' of "
    "the network",
    "globalbatchsize totalbatchsize": "'workload: {batch_size: 32}' is of a worker and a gradient: divide by "
    "workers and 'accumulate'",
    "maxsteps numsteps totalsteps maxiters": "write 'stop: {max_iterations: 1000}'",
    "mtu": "packets are not followed: write as 'bandwidth' what payloads get, as iperf3 says it",
    "worldsize nodes nnodes nprocpernode gpus": "write 'cluster: {workers: 8}'; with several GPUs a host "
    "also 'network: {host: {gpus: 4}}'",
}
"""Words without case and separators -> what to write instead."""


def answer_word(word: str) -> str:
    """What to write instead of a word of other tools; "" for any other.

    >>> answer_word("packet_loss")
    "packets lost at random are 'cluster: {network: {tcp: {loss: 0.001}}}'"
    """
    bare = re.sub(r"[\s_-]+", "", word.lower())
    return next((answer for words, answer in _OTHER_WORDS.items() if bare in words.split()), "")


def short_keys(keys: Sequence[str]) -> list[str]:
    """Shortest unique ends of dotted keys.

    >>> short_keys(["cluster.network.within.latency", "cluster.network.between.latency", "cluster.workers"])
    ['within.latency', 'between.latency', 'workers']
    """
    parts = [key.split(".") for key in keys]
    ends = []
    for own in parts:
        length = next(
            (n for n in range(1, len(own)) if sum(other[-n:] == own[-n:] for other in parts) == 1), len(own)
        )
        ends.append(".".join(own[-length:]))
    return ends


def show_value(value: Any) -> str:
    """A value as a scenario writes it: ``[{probability: 0.05, slowdown: 4}]``."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False).replace('"', "")
