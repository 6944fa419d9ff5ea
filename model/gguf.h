/*
 * GGUF version 2 and 3, little-endian. Everything is checked on opening: counts against the bytes left, value types, nesting (one level
 * of array in array), no key and no tensor name twice, general.alignment a power of two and a multiple of 4, dimensions (1 to 4,
 * products without wrap, rows of whole blocks), offsets aligned, within the file, no overlap. Tensors of a type that has no decoder here
 * are listed but cannot be read. Strings are borrowed bytes (length given, not NUL-terminated). Errors are E_INPUT. Immutable after
 * opening; threads may share it.
 */
#ifndef MODEL_GGUF_H
#define MODEL_GGUF_H

#include "core/arena.h"
#include "core/fs.h"

enum gguf_value { GV_U8, GV_I8, GV_U16, GV_I16, GV_U32, GV_I32, GV_F32, GV_BOOL, GV_STR, GV_ARR, GV_U64, GV_I64, GV_F64 };
/* Numbers are those of the format. */
enum ggml_type {
    GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q4_1 = 3, GGML_Q5_0 = 6, GGML_Q5_1 = 7, GGML_Q8_0 = 8, GGML_Q2_K = 10, GGML_Q3_K = 11,
        GGML_Q4_K = 12,
    GGML_Q5_K = 13, GGML_Q6_K = 14, GGML_I8 = 24, GGML_I16 = 25, GGML_I32 = 26, GGML_I64 = 27, GGML_F64 = 28, GGML_BF16 = 30
};

struct gguf_str {
    const char *p;
    size_t n;
};
struct gguf_kv {
    struct gguf_str key;
    enum gguf_value type;
    enum gguf_value elem; /* of an array */
    uint64_t count;       /* elements of an array, else 1 */
    const uint8_t *data;  /* the value's bytes; for an array its first element */
    size_t bytes;
};
struct gguf_tensor {
    struct gguf_str name;
    uint32_t type;  /* enum ggml_type */
    int ndim;       /* 1..4 (no dimensions in the file: one element, ndim 1) */
    int64_t ne[4];  /* ne[0] is the row length, as in the file; unused ones are 1 */
    int64_t n;
    const uint8_t *data;
    size_t bytes;
};
struct gguf {
    char path[1024];
    struct file_map map;
    bool owns_map;
    struct arena mem;
    uint32_t version, alignment;
    struct gguf_kv *kv; /* file order */
    size_t n_kv;
    struct gguf_tensor *t; /* file order */
    size_t n_t;
    struct gguf_kv **kv_sorted; /* by key */
    struct gguf_tensor **t_sorted; /* by name */
};
int gguf_open(struct gguf *g, const char *path, struct err *e);
int gguf_open_mem(struct gguf *g, const char *name, const void *p, size_t len, struct err *e);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_key(const struct gguf *g, const char *key);        /* NULL when absent */
const struct gguf_tensor *gguf_find(const struct gguf *g, const char *name);  /* NULL when absent */
bool gguf_str_eq(struct gguf_str s, const char *z);

/* Scalars. The plain form demands the key, _opt leaves *out alone and returns 0 when it is absent. Any integer type is taken for i64
 * (range checked); floats and integers for f64. An array of equal numbers counts as that number (head_count_kv is stored so by some
 * writers). */
int gguf_i64(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct err *e);
int gguf_i64_opt(const struct gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, struct err *e);
int gguf_f64(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_f64_opt(const struct gguf *g, const char *key, double *out, struct err *e);
int gguf_bool_opt(const struct gguf *g, const char *key, bool *out, struct err *e);
int gguf_string(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);
int gguf_string_opt(const struct gguf *g, const char *key, struct gguf_str *out, struct err *e);

/* Walks an array: `struct gguf_iter it = gguf_iter(kv); while (gguf_next_str(&it, &s)) ...`. false at the end or when the element type
 * is another. */
struct gguf_iter {
    const struct gguf_kv *kv;
    const uint8_t *p;
    uint64_t left;
};
struct gguf_iter gguf_iter(const struct gguf_kv *kv);
bool gguf_next_str(struct gguf_iter *it, struct gguf_str *s);
bool gguf_next_i64(struct gguf_iter *it, int64_t *v);
bool gguf_next_f64(struct gguf_iter *it, double *v);

const char *ggml_type_name(uint32_t type);                                     /* "Q4_1"; NULL when the number is not a type */
bool ggml_type_layout(uint32_t type, int *block_elems, int *block_bytes);      /* false when unknown */
bool ggml_can_read(uint32_t type);
/* Elements first .. first+n-1 (both multiples of the block) to float32: Q*_0, Q*_1 as d*q (+ m); K-quants as d*scale*q - dmin*min in
 * float32, product first. */
int ggml_to_f32(uint32_t type, const uint8_t *src, int64_t first, int64_t n, float *dst, struct err *e);

#endif
