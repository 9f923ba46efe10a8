"""The L2 norms of a list of torch tensors, free of overflow and underflow.

- On a CPU in one read, by one call for all of them. Norms so small or large that their squares may
  have left the dtype's range, which a glance at the vector of norms shows, are taken again from
  scaled tensors.
- On CUDA the squares of float32 are added up in float64, in one read and without waiting.
- Elsewhere, and for float64 on a GPU, from scaled tensors: two reads, without waiting.
"""

import torch


def torch_norms(tensors, dtype):
    """The L2 norm of each tensor, a vector.

    A finite tensor gives a finite norm, and a norm of 0 only if all elements are 0 or subnormal. An
    Inf or NaN in a tensor is one in its norm.

    Args:
        tensors: Non-empty list of float32 and float64 tensors. They may lie on several devices.
        dtype: The dtype of the result, "float32" or "float64". It is on the first one's device.
    """
    kinds = {}
    for i, tensor in enumerate(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(i)
    if len(kinds) == 1:
        return _norms_of_a_kind(tensors).to(getattr(torch, dtype))
    norms = torch.empty(len(tensors), dtype=getattr(torch, dtype), device=tensors[0].device)
    for positions in kinds.values():
        part = _norms_of_a_kind([tensors[i] for i in positions])
        norms[torch.tensor(positions, device=norms.device)] = part.to(norms.device, norms.dtype)
    return norms


def _norms_of_a_kind(tensors):
    dtype, device = tensors[0].dtype, tensors[0].device.type
    if torch.compiler.is_compiling():  # a look at a number would end what is compiled as one
        norms = _scaled_norms(tensors)
    elif device == "cpu":
        norms = torch.stack(torch._foreach_norm(tensors))
        limits = torch.finfo(dtype)
        safe = (norms >= limits.tiny**0.5 / limits.eps) & (norms <= limits.max**0.5)
        if not bool(safe.all()):
            unsafe = (~safe).nonzero().flatten()
            norms[unsafe] = _scaled_norms([tensors[i] for i in unsafe.tolist()])
    elif device == "cuda" and dtype == torch.float32:
        norms = torch.stack(torch._foreach_norm(tensors, dtype=torch.float64))
    else:
        norms = _scaled_norms(tensors)
    largest = torch.finfo(dtype).max
    return torch.where(norms.isfinite(), norms.clamp(max=largest), norms).to(dtype)


def _scaled_norms(tensors):
    """The norms by way of the largest elements: exact in range, but each tensor is read twice."""
    zero = tensors[0].new_zeros(())
    peaks = torch.stack([t.abs().amax() if t.numel() else zero for t in tensors])
    # A power of 2 that is near the peak: no digit is lost, and its reciprocal is a normal number.
    limit = 120 if peaks.dtype == torch.float32 else 1000
    exponents = torch.frexp(peaks).exponent.clamp(-limit, limit)
    usable = peaks.isfinite() & (peaks > 0)
    # Not `ldexp`: torch 2.4 computes its power of 2 in float32, even for float64.
    scales = torch.pow(2.0, torch.where(usable, exponents, 0).to(peaks.dtype))
    scaled = [tensor / scale for tensor, scale in zip(tensors, scales.unbind(), strict=True)]
    norms = torch.stack(torch._foreach_norm(scaled))
    # The product may leave the range only where the norm itself is beyond the largest number.
    largest = torch.finfo(peaks.dtype).max
    held = norms.clamp(max=largest / scales.clamp(min=1)) * scales
    return torch.where(usable, held, peaks)
