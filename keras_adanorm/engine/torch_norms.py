"""Interim."""

import torch

from keras_adanorm.engine import precision


def torch_norms(tensors, dtype):
    from keras_adanorm.engine.norms import _hold

    out = []
    for t in tensors:
        n = torch.linalg.vector_norm(t.to(torch.float64)) if t.dtype == torch.float32 else None
        if n is None:
            scale = t.abs().max() if t.numel() else t.new_zeros(())
            scale = scale if scale > 0 and torch.isfinite(scale) else torch.ones_like(scale)
            n = scale * torch.linalg.vector_norm(t / scale)
        out.append(_hold(n, str(t.dtype).split(".")[1]))
    return torch.stack(out).to(getattr(torch, dtype))
