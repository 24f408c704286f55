"""Transformers, from their widths and depths; an example is a sequence."""

from __future__ import annotations

from .layer import Layer, fully_connected


def _embedding(name: str, rows: int, width: int, length: int, *, more: int = 0) -> Layer:
    """A table: looking up costs nothing beside a product."""
    return Layer(name, rows * width + more, 0.0, length, length * width)


def _block(
    name: str, width: int, hidden: int, length: int, *, keys: int, matrices: int, bias: bool, norms: int
) -> Layer:
    """Attention over all ``length`` tokens and a feed-forward part.

    ``keys`` is the width of keys and values: less than ``width`` where heads share them; ``matrices`` counts
    those of the feed-forward part: 2, or 3 with a gate; ``norms`` counts parameters of the normalisations.
    """
    weights = 2 * width**2 + 2 * width * keys + matrices * width * hidden
    biases = bias * (2 * width + 2 * keys + (matrices - 1) * hidden + width)
    products = 2.0 * weights * length
    attention = 4.0 * length**2 * width  # scores, and the weighted sum of values
    numbers = length * width
    return Layer(name, weights + biases + norms, products + attention, numbers, numbers)


def bert_large(length: int = 512) -> tuple[Layer, ...]:
    """BERT-large, uncased, with its pooler (Devlin et al., NAACL 2019)."""
    width = 1024
    blocks = (
        _block(f"block{k}", width, 4 * width, length, keys=width, matrices=2, bias=True, norms=4 * width)
        for k in range(24)
    )
    tables = _embedding("embedding", 30_522 + 512 + 2, width, length, more=2 * width)
    return (tables, *blocks, fully_connected("pooler", width, width))


def gpt2(width: int, depth: int, length: int = 1024) -> tuple[Layer, ...]:
    """GPT-2 of a width and a depth (Radford et al., 2019, table 2); the last product has the table's weights.

    Its table is counted once, where its gradient is complete: at the end of a backward pass.
    """
    vocabulary = 50_257
    blocks = (
        _block(f"block{k}", width, 4 * width, length, keys=width, matrices=2, bias=True, norms=4 * width)
        for k in range(depth)
    )
    head = Layer("head", 2 * width, 2.0 * vocabulary * width * length, length * width, length * vocabulary)
    return (_embedding("embedding", vocabulary + 1024, width, length), *blocks, head)


def llama(
    width: int, depth: int, hidden: int, *, keys: int, vocabulary: int, length: int = 4096
) -> tuple[Layer, ...]:
    """Llama of a width and a depth (Touvron et al., arXiv 2302.13971 and 2307.09288; 3: arXiv 2407.21783)."""
    blocks = (
        _block(f"block{k}", width, hidden, length, keys=keys, matrices=3, bias=False, norms=2 * width)
        for k in range(depth)
    )
    product = fully_connected("head", width, vocabulary, bias=False, rows=length)
    head = Layer("head", product.parameters + width, product.forward_flops, product.inputs, product.outputs)
    return (_embedding("embedding", vocabulary, width, length), *blocks, head)
