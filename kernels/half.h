/* Conversions between float and the 16-bit formats, round to nearest even; NaN stays NaN (quiet). Plain C, same bits everywhere. */
#ifndef KERNELS_HALF_H
#define KERNELS_HALF_H

#include <string.h>

#include "core/base.h"

static inline uint32_t f32_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}
static inline float f32_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, 4);
    return x;
}
static inline float bf16_to_f32(uint16_t h)
{
    return f32_from_bits((uint32_t)h << 16);
}
static inline uint16_t f32_to_bf16(float x)
{
    uint32_t u = f32_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}
static inline float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31u, man = h & 0x3ffu;
    if (exp == 31)
        return f32_from_bits(sign | 0x7f800000u | man << 13 | (man ? 0x400000u : 0u));
    if (exp == 0) /* zero or subnormal: man * 2^-24, exact in float */
        return sign ? -(float)man * 0x1p-24f : (float)man * 0x1p-24f;
    return f32_from_bits(sign | (exp + 112u) << 23 | man << 13);
}
static inline uint16_t f32_to_f16(float x)
{
    uint32_t u = f32_bits(x), sign = u >> 16 & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x1ffu));
    if (a >= 0x477ff000u) /* rounds to 65536 or more */
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) { /* below 2^-14: a multiple of 2^-24; adding 0.5 puts the rounding where the float unit does it */
        uint32_t r = f32_bits(f32_from_bits(a) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | r);
    }
    a += 0xc8000fffu + (a >> 13 & 1u); /* rebias by -112 << 23, round */
    return (uint16_t)(sign | a >> 13);
}

#endif
