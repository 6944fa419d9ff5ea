/*
 * Safetensors: 8 bytes little-endian header length, a JSON object {name: {dtype, shape, data_offsets}}, then the data. Reading checks
 * everything the format text demands: header length within the file and ST_MAX_HEADER_BYTES, first byte '{', nothing but spaces after
 * the object, no key twice, UTF-8, integer offsets, bytes = product(shape) * size(dtype) without wrap, tensors cover the data area
 * without overlap or hole. Values may be anything, NaN included. Tensor data need not be aligned: read with memcpy. All errors are
 * E_INPUT and name file and tensor. Readers are immutable after opening; any number of threads may read from one.
 */
#ifndef MODEL_ST_H
#define MODEL_ST_H

#include "core/arena.h"
#include "core/fs.h"

#define ST_MAX_HEADER_BYTES (100u << 20) /* the limit of the reference reader */
#define ST_MAX_NDIM 32

enum st_dtype { ST_BOOL, ST_U8, ST_I8, ST_F8_E4M3, ST_F8_E5M2, ST_I16, ST_U16, ST_F16, ST_BF16, ST_I32, ST_U32, ST_F32, ST_I64, ST_U64,
                ST_F64 };
#define ST_N_DTYPES 15
const char *st_dtype_name(enum st_dtype t); /* "BF16" */
size_t st_dtype_bytes(enum st_dtype t);
bool st_dtype_parse(const char *name, enum st_dtype *out);

struct st_tensor {
    const char *name;     /* UTF-8, NUL-terminated (a name with U+0000 in it is refused) */
    enum st_dtype dtype;
    int ndim;             /* 0 = scalar, one element */
    const int64_t *shape; /* ndim entries, >= 0; last one runs fastest */
    int64_t n;            /* number of elements */
    const uint8_t *data;  /* borrowed from the file, not aligned */
    size_t bytes;
};
struct st_file {
    char path[1024];
    struct file_map map;
    bool owns_map;
    struct arena mem;
    struct st_tensor *t; /* in order of their data */
    size_t n;
    struct st_tensor **by_name; /* the same, sorted by name */
    const char **meta; /* __metadata__: key, value, key, value...; file order */
    size_t n_meta;     /* pairs */
};
int st_open(struct st_file *f, const char *path, struct err *e);
/* The same over memory that outlives f; `name` is for messages. */
int st_open_mem(struct st_file *f, const char *name, const void *p, size_t len, struct err *e);
void st_close(struct st_file *f);
const struct st_tensor *st_find(const struct st_file *f, const char *name); /* NULL when absent */
const char *st_meta(const struct st_file *f, const char *key);

/* dst[i] = (float)element first+i, i < n. Exact for F16, BF16, F8, F32 and small integers; F64 and wide integers are rounded to nearest. */
void st_to_f32(enum st_dtype t, const uint8_t *src, int64_t first, int64_t n, float *dst);
/* Back: round to nearest even (F32, F16, BF16 only; others are BUG). dst holds n * st_dtype_bytes(t) bytes. */
void st_from_f32(enum st_dtype t, const float *src, int64_t n, uint8_t *dst);

/*
 * Writer of one file or of a folder of shards (model.safetensors, or model-0000k-of-0000n.safetensors and model.safetensors.index.json
 * when the data is larger than shard_bytes). Declare every tensor, begin, then write each tensor's values in the order declared (in as
 * many pieces as one likes), commit. Every file appears under its final name only in commit, the index last. Bytes depend on the
 * declared tensors and values alone.
 */
struct st_out;
int st_out_open(struct st_out **out, const char *path, struct err *e);                           /* one file */
int st_out_open_dir(struct st_out **out, const char *dir, size_t shard_bytes, struct err *e);    /* shard_bytes 0 = one file */
int st_out_meta(struct st_out *o, const char *key, const char *value, struct err *e);            /* default is {"format": "pt"} */
int st_out_declare(struct st_out *o, const char *name, enum st_dtype t, int ndim, const int64_t *shape, struct err *e);
int st_out_begin(struct st_out *o, struct err *e);
/* n values of tensor `name` (must be the one whose turn it is), float32 rounded to the declared F32, F16 or BF16. */
int st_out_f32(struct st_out *o, const char *name, const float *v, int64_t n, struct err *e);
/* The same for bytes already in the declared dtype; n_bytes a multiple of the element size. */
int st_out_raw(struct st_out *o, const char *name, const void *p, size_t n_bytes, struct err *e);
int st_out_commit(struct st_out *o, struct err *e); /* frees o, also on failure */
void st_out_abort(struct st_out *o);                /* frees o; NULL is fine */

/*
 * *.index.json: {"metadata": {...}, "weight_map": {tensor: file}}. File names must be plain names (no '/', no '..'). The shards are
 * opened and checked: every mapped tensor is in the file named, every tensor of a shard is mapped to that shard.
 */
struct st_shards {
    struct arena mem;
    struct st_file *file; /* sorted by name */
    size_t n_file;
};
int st_shards_open(struct st_shards *s, const char *index_path, struct err *e);
void st_shards_close(struct st_shards *s);
/* Only the check of the index text; names of the files (sorted, unique) into the arena. dir is not looked at. */
int st_index_parse(const char *name, const char *text, size_t len, struct arena *mem, const char ***files, size_t *n_files, struct err *e);

/* IEEE half and bfloat16. To 16 bits: round to nearest even; NaN stays NaN (quiet). */
float f16_to_f32(uint16_t h);
uint16_t f32_to_f16(float x);
float bf16_to_f32(uint16_t h);
uint16_t f32_to_bf16(float x);

#endif
