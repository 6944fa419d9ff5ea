/*
 * Block formats of GGUF: sizes of all, decoders of those that language models at hand use. A scale and an integer multiply exactly in
 * float32 (11 + 6 + 5 bits at most, but for Q6_K's 11 + 8 + 6), so a value has one rounding or two and does not depend on FMA
 * contraction.
 */
#include <string.h>

#include "model/gguf.h"
#include "model/st.h"

static const struct {
    uint32_t type;
    const char *name;
    int elems, bytes;
    bool readable;
} types[] = {
    {GGML_F32, "F32", 1, 4, true},         {GGML_F16, "F16", 1, 2, true},         {GGML_Q4_0, "Q4_0", 32, 18, true},
    {GGML_Q4_1, "Q4_1", 32, 20, true},     {GGML_Q5_0, "Q5_0", 32, 22, true},     {GGML_Q5_1, "Q5_1", 32, 24, true},
    {GGML_Q8_0, "Q8_0", 32, 34, true},     {GGML_Q2_K, "Q2_K", 256, 84, false},   {GGML_Q3_K, "Q3_K", 256, 110, false},
    {GGML_Q4_K, "Q4_K", 256, 144, true},   {GGML_Q5_K, "Q5_K", 256, 176, true},   {GGML_Q6_K, "Q6_K", 256, 210, true},
    {15, "Q8_K", 256, 292, false},         {16, "IQ2_XXS", 256, 66, false},       {17, "IQ2_XS", 256, 74, false},
    {18, "IQ3_XXS", 256, 98, false},       {19, "IQ1_S", 256, 50, false},         {20, "IQ4_NL", 32, 18, false},
    {21, "IQ3_S", 256, 110, false},        {22, "IQ2_S", 256, 82, false},         {23, "IQ4_XS", 256, 136, false},
    {GGML_I8, "I8", 1, 1, true},           {GGML_I16, "I16", 1, 2, true},         {GGML_I32, "I32", 1, 4, true},
    {GGML_I64, "I64", 1, 8, true},         {GGML_F64, "F64", 1, 8, true},         {29, "IQ1_M", 256, 56, false},
    {GGML_BF16, "BF16", 1, 2, true},       {34, "TQ1_0", 256, 54, false},         {35, "TQ2_0", 256, 66, false},
    {39, "MXFP4", 32, 17, false},
};

static int type_index(uint32_t type)
{
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i].type == type)
            return (int)i;
    return -1;
}

const char *ggml_type_name(uint32_t type)
{
    int i = type_index(type);
    return i < 0 ? NULL : types[i].name;
}

bool ggml_type_layout(uint32_t type, int *block_elems, int *block_bytes)
{
    int i = type_index(type);
    if (i < 0)
        return false;
    *block_elems = types[i].elems;
    *block_bytes = types[i].bytes;
    return true;
}

bool ggml_can_read(uint32_t type)
{
    int i = type_index(type);
    return i >= 0 && types[i].readable;
}

static float half_at(const uint8_t *p)
{
    return f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

/* 32 values: scale, [minimum], [fifth bits], nibbles; the low nibbles are values 0..15, the high ones 16..31. */
static void block32(uint32_t type, const uint8_t *p, float *y)
{
    bool min = type == GGML_Q4_1 || type == GGML_Q5_1, five = type == GGML_Q5_0 || type == GGML_Q5_1;
    float d = half_at(p), m = min ? half_at(p + 2) : 0;
    const uint8_t *q = p + (min ? 4 : 2);
    uint32_t high = 0;
    if (five) {
        high = (uint32_t)q[0] | (uint32_t)q[1] << 8 | (uint32_t)q[2] << 16 | (uint32_t)q[3] << 24;
        q += 4;
    }
    int off = min ? 0 : five ? 16 : 8;
    for (int j = 0; j < 32; j++) {
        int v = (j < 16 ? q[j] & 15 : q[j - 16] >> 4) | (int)(high >> j & 1u) << 4;
        float x = d * (float)(v - off);
        y[j] = min ? x + m : x;
    }
}

static void block_q8_0(const uint8_t *p, float *y)
{
    float d = half_at(p);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)p[2 + j];
}

/* Eight 6-bit scales and eight 6-bit minima in 12 bytes. */
static void scales_k(const uint8_t s[12], int j, int *scale, int *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
        *min = s[j + 4] >> 4 | (s[j] >> 6) << 4;
    }
}

/* Q4_K and Q5_K: 8 sub-blocks of 32; two neighbours share 32 bytes (low, high nibbles); Q5_K's fifth bit of sub-block j is bit j of qh. */
static void block_q45_k(uint32_t type, const uint8_t *p, float *y)
{
    float d = half_at(p), dmin = half_at(p + 2);
    const uint8_t *qh = type == GGML_Q5_K ? p + 16 : NULL, *q = p + (qh ? 48 : 16);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        scales_k(p + 4, j, &scale, &min);
        float ds = d * (float)scale, dm = dmin * (float)min;
        const uint8_t *b = q + 32 * (j / 2);
        for (int i = 0; i < 32; i++) {
            int v = j & 1 ? b[i] >> 4 : b[i] & 15;
            if (qh)
                v += (qh[i] >> j & 1) << 4;
            float x = ds * (float)v;
            y[32 * j + i] = x - dm;
        }
    }
}

/* Q6_K: low nibbles ql[128], top bit pairs qh[64], int8 scales of 16 values each, scale of scales last. */
static void block_q6_k(const uint8_t *p, float *y)
{
    const uint8_t *ql = p, *qh = p + 128, *sc = p + 192;
    float d = half_at(p + 208);
    for (int half = 0; half < 2; half++)
        for (int j = 0; j < 4; j++) /* 32 values each */
            for (int i = 0; i < 32; i++) {
                uint8_t low = ql[64 * half + 32 * (j & 1) + i];
                int v = (j < 2 ? low & 15 : low >> 4) | (qh[32 * half + i] >> (2 * j) & 3) << 4;
                float ds = d * (float)(int8_t)sc[8 * half + 2 * j + i / 16];
                y[128 * half + 32 * j + i] = ds * (float)(v - 32);
            }
}

static enum st_dtype plain_dtype(uint32_t type)
{
    switch (type) {
    case GGML_F16: return ST_F16;
    case GGML_BF16: return ST_BF16;
    case GGML_F64: return ST_F64;
    case GGML_I8: return ST_I8;
    case GGML_I16: return ST_I16;
    case GGML_I32: return ST_I32;
    case GGML_I64: return ST_I64;
    default: return ST_F32;
    }
}

int ggml_to_f32(uint32_t type, const uint8_t *src, int64_t first, int64_t n, float *dst, struct err *e)
{
    int t = type_index(type);
    if (t < 0 || !types[t].readable)
        return ERR(e, E_INPUT, "tensor type %" PRIu32 " (%s) has no decoder; convert the file to Q8_0, F16 or one of Q4_0 to Q6_K", type,
                   t < 0 ? "unknown" : types[t].name);
    int64_t per = types[t].elems;
    if (first % per || n % per || first < 0 || n < 0)
        BUG("elements %" PRId64 " + %" PRId64 " of blocks of %" PRId64, first, n, per);
    if (per == 1) {
        st_to_f32(plain_dtype(type), src, first, n, dst);
        return 0;
    }
    const uint8_t *p = src + (size_t)(first / per) * (size_t)types[t].bytes;
    for (int64_t i = 0; i < n; i += per, p += types[t].bytes, dst += per)
        switch (type) {
        case GGML_Q8_0: block_q8_0(p, dst); break;
        case GGML_Q4_K:
        case GGML_Q5_K: block_q45_k(type, p, dst); break;
        case GGML_Q6_K: block_q6_k(p, dst); break;
        default: block32(type, p, dst);
        }
    return 0;
}
