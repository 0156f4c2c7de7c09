"""What a graph makes of its attention mask: the bounded mask of the scores, and the positions of a decoder's tokens.

Both are exact for padding on either side. Nothing is ever infinite, so a row of padding alone stays finite, and no row of a
batch is read by another.

Legend: B batch, T queries, S keys (as many).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from train.attention.quiet_attention import MASK_VALUE


class BoundedMask(nn.Module):
    """The mask that is added to the scores: 0 for a token, a large negative number for padding; never infinite."""

    def forward(self, attention_mask_BS: Tensor) -> Tensor:
        """(B, 1, 1, S), float32."""
        mask_B11S = attention_mask_BS.unsqueeze(1).unsqueeze(1)
        return (1.0 - mask_B11S.to(torch.float32)) * MASK_VALUE


class CausalMask(nn.Module):
    """As :class:`BoundedMask`, and closed to keys behind the query; one number per pair, never the sum of two masks."""

    def forward(self, attention_mask_BS: Tensor) -> Tensor:
        """(B, 1, T, S), float32."""
        places_T = torch.arange(attention_mask_BS.shape[1])
        seen_TS = (places_T.unsqueeze(0) <= places_T.unsqueeze(1)).to(torch.float32)
        open_B1TS = attention_mask_BS.unsqueeze(1).unsqueeze(1).to(torch.float32) * seen_TS
        return (1.0 - open_B1TS) * MASK_VALUE


class Positions(nn.Module):
    """Place of each token among the tokens of its row, from 0; -1 on padding.

    OPT defines its positions so, and finds row ``-1 + 2`` of its table on padding. Rotary embeddings depend on differences
    only, so padding before the tokens changes nothing for them either.
    """

    def forward(self, attention_mask_BT: Tensor) -> Tensor:
        """(B, T), of the mask's integer type."""
        counted_BT = torch.cumsum(attention_mask_BT, dim=1, dtype=attention_mask_BT.dtype)
        return counted_BT * attention_mask_BT - 1
