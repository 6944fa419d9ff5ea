/*
 * A checkpoint as a list of named float tensors, whatever it is stored in: a Hugging Face folder (model.safetensors, or
 * model.safetensors.index.json and shards), a lone *.safetensors, a *.index.json, or a *.gguf. Names are Hugging Face's; GGUF names are
 * mapped and the rows of q and k of llama-arch GGUF files are put back in Hugging Face's order. Hybrids keep fla's names in the list;
 * ckfile_find also takes the canonical names of cfg.h. Values are always float32. Immutable after opening; threads may read at the same
 * time. Errors: E_INPUT.
 */
#ifndef MODEL_CKFILE_H
#define MODEL_CKFILE_H

#include "model/cfg.h"
#include "model/st.h"

struct ck_tensor {
    const char *name;      /* as listed */
    const char *file_name; /* in the file (GGUF: blk.0.attn_q.weight) */
    const char *dtype;     /* "BF16", "Q4_1" */
    int ndim;
    const int64_t *shape;  /* rows first: [out, in] */
    int64_t n;
    size_t bytes;          /* in the file */
    const char *file;      /* base name */
    bool readable;         /* false: a type without a decoder */
};
struct ckfile;
/* A folder's config.json must be good. A lone file may have no usable configuration: then ckfile_cfg is NULL and ckfile_cfg_why says why. */
int ckfile_open(struct ckfile **out, const char *path, struct err *e);
void ckfile_close(struct ckfile *k); /* NULL is fine */
const struct mcfg *ckfile_cfg(const struct ckfile *k);
const char *ckfile_cfg_why(const struct ckfile *k);
const struct gguf *ckfile_gguf(const struct ckfile *k); /* NULL when it is none; tokenizer keys are there */
size_t ckfile_count(const struct ckfile *k);
const struct ck_tensor *ckfile_at(const struct ckfile *k, size_t i); /* sorted by name, bytewise */
const struct ck_tensor *ckfile_find(const struct ckfile *k, const char *name);

/* All n values, Hugging Face row order. */
int ckfile_read_f32(const struct ckfile *k, const struct ck_tensor *t, float *dst, struct err *e);
/* Rows row .. row+rows-1 of a tensor seen as [shape[0], n/shape[0]] (a scalar is one row). */
int ckfile_read_rows_f32(const struct ckfile *k, const struct ck_tensor *t, int64_t row, int64_t rows, float *dst, struct err *e);
/* SHA-256 of the float32 little-endian values in that order. */
int ckfile_sha256(const struct ckfile *k, const struct ck_tensor *t, char hex[65], struct err *e);
/* SHA-256 over "name\0hash\n" of every tensor in list order: names a teacher independent of file format and shards. */
int ckfile_weights_sha256(const struct ckfile *k, char hex[65], struct err *e);
/* Files of the checkpoint (data and config), base name and path; for hashes in `model info`. */
size_t ckfile_n_files(const struct ckfile *k);
const char *ckfile_file_path(const struct ckfile *k, size_t i);

/* Every tensor that the configuration needs is there with the right shape, and no other (rotary buffers and a tied lm_head are passed
 * over). */
int ckfile_match(const struct ckfile *k, const struct mcfg *c, struct err *e);

/* What a path is and whether it is sound: opens and checks it; no values are decoded. tokenizer.json is only named (kind), the
 * tokenizer's own reader checks it. */
enum ckfile_kind { CK_FOLDER, CK_SAFETENSORS, CK_INDEX, CK_GGUF, CK_CONFIG, CK_TOKENIZER };
struct ckfile_summary {
    enum ckfile_kind kind;
    size_t n_files, n_tensors;
    int64_t n_values;
    size_t bytes;           /* of tensor data */
    char dtypes[256];       /* "BF16 x 290, F32 x 2" */
    bool has_cfg;           /* a usable configuration came with it */
};
const char *ckfile_kind_name(enum ckfile_kind k);
int ckfile_kind_of(const char *path, enum ckfile_kind *out, struct err *e); /* by name and first bytes; E_INPUT when it is none of them */
int ckfile_check(const char *path, struct ckfile_summary *out, struct err *e);

#endif
