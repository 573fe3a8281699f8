"""GELU and its slope in Triton, for kernels that contain them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def normal_cdf(z, EXACT: tl.constexpr, FAST: tl.constexpr):
    """Compute the normal distribution function and the square of z, limited to where the fit holds.

    Unless EXACT, the logit is a polynomial fitted to the true one: GELU is then off by up to 2.5e-5 and its slope by
    1.1e-4, at most half the rounding of fp16 there. FAST takes the GPU's approximate instructions (errors of 2e-7).
    """
    square = tl.minimum(z * z, 30.0)  # the fit holds up to |z| = 5.5, where the function is 0 or 1
    if EXACT:
        cdf = 0.5 + 0.5 * tl.erf(z * 0.7071067811865476)
    else:
        # the logit in powers of 2, negative: -log2(e) (1.59501573 z + 7.40113262e-02 z^3 - 7.03038788e-04 z^5)
        power = z * tl.fma(square, tl.fma(square, 1.01427057e-03, -1.06775774e-01), -2.30112131)
        if FAST:
            cdf = tl.inline_asm_elementwise(
                "{ .reg .f32 t; ex2.approx.ftz.f32 t, $1; add.ftz.f32 t, t, 0f3F800000; rcp.approx.ftz.f32 $0, t; }",
                "=f,f", [power], dtype=tl.float32, is_pure=True, pack=1,
            )  # fmt: skip
        else:
            cdf = 1 / (1 + tl.exp2(power))
    return cdf, square


@triton.jit
def gelu_slope(z, EXACT: tl.constexpr, FAST: tl.constexpr):
    """Compute the derivative of GELU."""
    cdf, square = normal_cdf(z, EXACT, FAST)
    if EXACT:
        slope = tl.fma(z, tl.exp(-0.5 * z * z) * 0.3989422804014327, cdf)
    else:
        rise = z * tl.fma(square, tl.fma(square, -3.51519394e-03, 0.2220339786), 1.59501573)  # z times its slope
        slope = tl.fma(cdf, tl.fma(-cdf, rise, rise), cdf)
    return slope
