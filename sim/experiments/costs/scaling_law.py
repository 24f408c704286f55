"""Published scaling law: the loss of a language model from its parameters and training tokens.

It was fitted to others' runs, on their data, with synchronous training at well-chosen learning rates. It
knows nothing of averaging schemes: what a scheme costs in loss is not in it. Every display of its
figures says so (``CAVEAT``).

Source: Hoffmann et al., arXiv 2203.15556, section 3.3 and appendix D.3 (approach 3: the parametric fit).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ScalingLaw:
    """L(N, D) = irreducible + of_parameters / N^alpha + of_tokens / D^beta, in nats per token.

    >>> round(HOFFMANN.loss(7e9, 140e9), 3)
    2.184
    >>> round(HOFFMANN.tokens_to(7e9, 2.184) / 1e9)
    139

    Attributes:
        source: the paper of the fit.
        irreducible, of_parameters, alpha, of_tokens, beta: the constants.
    """

    source: str
    irreducible: float
    of_parameters: float
    alpha: float
    of_tokens: float
    beta: float

    def loss(self, parameters: float, tokens: float) -> float:
        """Loss after ``tokens``."""
        of_size = self.of_parameters / parameters**self.alpha
        return float(self.irreducible + of_size + self.of_tokens / tokens**self.beta)

    def tokens_to(self, parameters: float, loss: float) -> float:
        """Tokens needed for a loss; infinite where the model has too few parameters for it."""
        rest = loss - self.irreducible - self.of_parameters / parameters**self.alpha
        return float((self.of_tokens / rest) ** (1 / self.beta)) if rest > 0 else math.inf


HOFFMANN: Final = ScalingLaw("Hoffmann et al., arXiv 2203.15556", 1.69, 406.4, 0.34, 410.7, 0.28)

CAVEAT: Final = (
    f"Losses are by a published scaling law ({HOFFMANN.source}), fitted to others' synchronous runs on "
    "others' data: no loss was trained or measured here, and what a scheme costs in loss is not in it."
)
