"""Shapes of Llama models: how many weights, and how many FLOPs a token costs.

N, in this whole study, is `weights`: attention, feed-forward and norms, without the embedding matrix and
without the head. Embeddings are looked up, not multiplied, and in small models they outweigh everything else;
the head's multiplications are counted in `flops_per_token`, not in N. (6 N D is the rule of thumb beside it.)

P2's Table 4 prints the FFN as one matrix of width 2 x 256 x (floor(8 h / 768) + 1): the gate and the up
projection of a Llama FFN side by side, so that its `feed_forward` is half of it (`study/sizes.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from cptkit.train.config import ConfigError


@dataclass(frozen=True)
class Shape:
    """A Llama with as many key-value heads as heads and a gated feed-forward of this width."""

    hidden: int
    layers: int
    heads: int
    feed_forward: int

    def __post_init__(self) -> None:
        if min(self.hidden, self.layers, self.heads, self.feed_forward) < 1:
            raise ConfigError(f"every number of a shape is at least 1: {self}")
        if self.hidden % self.heads:
            raise ConfigError(f"{self.heads} heads do not divide a width of {self.hidden}")

    @property
    def matrices(self) -> int:
        """Weights of one layer that a token is multiplied with: 4 h^2 for attention, 3 h f for the FFN."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.feed_forward

    @property
    def weights(self) -> int:
        """N: the matrices and two norms of each layer, and the last norm."""
        return self.layers * (self.matrices + 2 * self.hidden) + self.hidden

    def parameters(self, vocabulary: int, *, tied: bool = True) -> int:
        """All of it: N, the embedding matrix and, where they are not tied, the head."""
        return self.weights + (1 if tied else 2) * vocabulary * self.hidden

    def flops_per_token(self, vocabulary: int, length: int) -> int:
        """FLOPs to train on one token of a sequence of `length`: three times those of its forward pass.

        Two per multiplied weight, the head's included, and attention over the whole sequence (scores and
        values, 4 h length a layer), as dense kernels compute it.
        """
        attention = 4 * self.hidden * length
        return 3 * (self.layers * (2 * self.matrices + attention) + 2 * vocabulary * self.hidden)
