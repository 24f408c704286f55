"""Transformers, from their shapes; an example is a sequence, or a pair of sequences to translate."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ...config.limits import MAX_LAYERS, MAX_WIDTH
from ...config.problems import mistake
from ...config.settings import Settings
from .layer import Layer, fully_connected

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class TransformerShape(Settings):
    """A transformer by the numbers that decide its parameters and operations.

    Source: Vaswani et al., NeurIPS 2017; heads that share keys: Ainslie et al., EMNLP 2023; gates: Shazeer,
    arXiv 2002.05202.
    """

    layers: int = Field(ge=1, le=MAX_LAYERS, description="blocks; with `decoder_layers` those of the encoder")
    width: Width = Field(description="numbers of a token between two blocks")
    feed_forward: Width = Field(description="inner width of a block's feed-forward part")
    vocabulary: Width = Field(description="rows of the table of tokens")
    length: Width = Field(description="tokens of an example, of source and of target each")
    decoder_layers: int = Field(
        default=0, ge=0, le=MAX_LAYERS, description="blocks of a decoder, which attend to the encoder too"
    )
    positions: int = Field(
        default=0, ge=0, le=MAX_WIDTH, description="rows of a trained table of positions (0: computed)"
    )
    tied: bool = Field(default=True, description="the last product has the weights of the table of tokens")
    gated: bool = Field(default=False, description="feed-forward parts of three matrices (SwiGLU), not two")
    biases: bool = Field(default=True, description="products and normalisations have biases")
    heads: Width = Field(default=1, description="heads of an attention, where groups of them share keys")
    key_heads: Width | None = Field(
        default=None, description="heads of keys and values (default: one for each head)"
    )

    @model_validator(mode="after")
    def _check(self) -> TransformerShape:
        if self.width % self.heads:
            raise mistake(f"{self.heads} heads do not divide a width of {self.width}", "heads")
        if self.heads % (self.key_heads or 1):
            raise mistake(f"must divide heads, which is {self.heads}", "key_heads")
        return self


def transformer(shape: TransformerShape) -> tuple[Layer, ...]:
    """Tables, blocks and the last product of a transformer, in forward order.

    A tied table is counted once, where its gradient is complete: at the end of a backward pass.
    """
    blocks = [_block(f"block{k}", shape) for k in range(shape.layers)]
    stacks = 1
    if shape.decoder_layers:
        stacks = 2
        blocks += [_block(f"decoder{k}", shape, attentions=2) for k in range(shape.decoder_layers)]
    rows, length = shape.vocabulary + shape.positions, shape.length
    # Looking up costs nothing beside a product.
    table = Layer("embedding", rows * shape.width, 0.0, length, length * shape.width)
    product = fully_connected("head", shape.width, shape.vocabulary, bias=False, rows=length)
    own = stacks * _norm(shape) + (0 if shape.tied else product.parameters)
    return (table, *blocks, Layer("head", own, product.forward_flops, product.inputs, product.outputs))


def bert_large() -> tuple[Layer, ...]:
    """BERT-large, uncased, with its pooler (Devlin et al., NAACL 2019)."""
    shape = TransformerShape(
        layers=24, width=1024, feed_forward=4096, vocabulary=30_522, length=512, positions=512 + 2
    )
    table, *blocks, head = transformer(shape)
    normed = Layer("embedding", table.parameters + head.parameters, 0.0, table.inputs, table.outputs)
    return (normed, *blocks, fully_connected("pooler", shape.width, shape.width))


def _norm(shape: TransformerShape) -> int:
    return (1 + shape.biases) * shape.width


def _block(name: str, shape: TransformerShape, attentions: int = 1) -> Layer:
    """Attentions over all tokens and a feed-forward part, each with a normalisation."""
    width, hidden, length = shape.width, shape.feed_forward, shape.length
    keys = width // shape.heads * (shape.key_heads or shape.heads)
    matrices = 2 + shape.gated
    weights = attentions * (2 * width**2 + 2 * width * keys) + matrices * width * hidden
    biases = attentions * (2 * width + 2 * keys) + (matrices - 1) * hidden + width
    own = weights + shape.biases * biases + (attentions + 1) * _norm(shape)
    scores = attentions * 4.0 * length**2 * width  # and the weighted sums of values
    numbers = length * width
    return Layer(name, own, 2.0 * weights * length + scores, numbers, numbers)
