#include "model/ckfile.h"

#include <stdlib.h>
#include <string.h>

#include "core/hash.h"
#include "core/jread.h"

#define CHUNK 65536 /* floats decoded at a time; a multiple of every block */

struct entry {
    struct ck_tensor pub;
    const struct st_tensor *st;
    const struct gguf_tensor *gt;
    int64_t rope_heads; /* > 0: rows of a llama-arch GGUF's q (that many heads) or k; -1: the number is not known */
};
struct ckfile {
    enum ckfile_kind kind;
    struct arena mem;
    struct entry *v; /* sorted by name */
    size_t n;
    struct mcfg cfg;
    bool has_cfg;
    char why[512];
    struct st_file st;
    struct st_shards shards;
    struct gguf g;
    const char **files;
    size_t n_files;
};

/* ---- names of GGUF tensors ---- */

static const char *const gguf_names[][2] = { /* without "blk.N." and "model.layers.N."; the type (weight, bias) follows */
    {"attn_norm", "input_layernorm"},      {"ffn_norm", "post_attention_layernorm"}, {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},        {"attn_v", "self_attn.v_proj"},           {"attn_output", "self_attn.o_proj"},
    {"attn_q_norm", "self_attn.q_norm"},   {"attn_k_norm", "self_attn.k_norm"},      {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},             {"ffn_down", "mlp.down_proj"},
};
static const char *const gguf_top[][2] = {
    {"token_embd.weight", "model.embed_tokens.weight"}, {"output_norm.weight", "model.norm.weight"}, {"output.weight", "lm_head.weight"}};

/* blk.N.PART.TYPE -> model.layers.N.PART.TYPE; unknown names stay. *part: 'q' or 'k' for the projections whose rows are permuted, else 0. */
static const char *hf_name(struct arena *mem, const char *name, char *part)
{
    *part = 0;
    for (size_t i = 0; i < ARRAY_LEN(gguf_top); i++)
        if (strcmp(name, gguf_top[i][0]) == 0)
            return gguf_top[i][1];
    if (strncmp(name, "blk.", 4) != 0)
        return name;
    size_t digits = strspn(name + 4, "0123456789");
    const char *rest = name + 4 + digits, *type = strrchr(name, '.');
    if (!digits || digits > 4 || (name[4] == '0' && digits > 1) || *rest != '.' || type <= rest)
        return name;
    if (strcmp(type, ".weight") != 0 && strcmp(type, ".bias") != 0)
        return name;
    size_t n = (size_t)(type - rest - 1);
    for (size_t i = 0; i < ARRAY_LEN(gguf_names); i++)
        if (strlen(gguf_names[i][0]) == n && strncmp(rest + 1, gguf_names[i][0], n) == 0) {
            if (n == 6 && (rest[6] == 'q' || rest[6] == 'k'))
                *part = rest[6];
            return arena_printf(mem, "model.layers.%.*s.%s%s", (int)digits, name + 4, gguf_names[i][1], type);
        }
    return name;
}

/* ---- opening ---- */

static int add_file(struct ckfile *k, const char *path, struct err *e)
{
    k->files[k->n_files++] = arena_strdup(&k->mem, path);
    return arena_ok(&k->mem, "checkpoint", e);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->pub.name, ((const struct entry *)b)->pub.name);
}

static void add_st(struct ckfile *k, const struct st_file *f)
{
    for (size_t i = 0; i < f->n; i++) {
        const struct st_tensor *t = &f->t[i];
        struct entry *x = &k->v[k->n++];
        x->st = t;
        x->pub = (struct ck_tensor){.name = t->name, .file_name = t->name, .dtype = st_dtype_name(t->dtype), .ndim = t->ndim,
                                    .shape = t->shape, .n = t->n, .bytes = t->bytes, .file = path_base(f->path), .readable = true};
    }
}

static int take_st(struct ckfile *k, const struct st_file *f, size_t n_files, struct err *e)
{
    size_t n = 0;
    for (size_t i = 0; i < n_files; i++)
        n += f[i].n;
    k->v = arena_array(&k->mem, n + 1, sizeof *k->v);
    k->files = arena_array(&k->mem, n_files + 2, sizeof *k->files);
    TRY(arena_ok(&k->mem, "checkpoint", e));
    for (size_t i = 0; i < n_files; i++) {
        add_st(k, &f[i]);
        TRY(add_file(k, f[i].path, e));
    }
    return 0;
}

static int take_gguf(struct ckfile *k, struct err *e)
{
    const struct gguf *g = &k->g;
    struct gguf_str arch = {"", 0};
    k->v = arena_array(&k->mem, g->n_t + 1, sizeof *k->v);
    k->files = arena_array(&k->mem, 2, sizeof *k->files);
    TRY(arena_ok(&k->mem, "checkpoint", e));
    TRY(add_file(k, g->path, e));
    const struct gguf_kv *kv = gguf_key(g, "general.architecture");
    if (kv && kv->type == GV_STR)
        TRY(gguf_string(g, "general.architecture", &arch, e));
    bool llama = gguf_str_eq(arch, "llama");
    for (size_t i = 0; i < g->n_t; i++) {
        const struct gguf_tensor *t = &g->t[i];
        struct entry *x = &k->v[k->n++];
        char part;
        if (memchr(t->name.p, 0, t->name.n))
            return ERR(e, E_INPUT, "%s: tensor %zu: a zero byte in its name", g->path, i);
        const char *name = arena_strndup(&k->mem, t->name.p, t->name.n);
        int64_t *shape = arena_array(&k->mem, 4, sizeof *shape);
        TRY(arena_ok(&k->mem, "checkpoint", e));
        for (int d = 0; d < t->ndim; d++)
            shape[d] = t->ne[t->ndim - 1 - d];
        x->gt = t;
        x->pub = (struct ck_tensor){.name = hf_name(&k->mem, name, &part), .file_name = name, .dtype = ggml_type_name(t->type),
                                    .ndim = t->ndim, .shape = shape, .n = t->n, .bytes = t->bytes, .file = path_base(g->path),
                                    .readable = ggml_can_read(t->type)};
        TRY(arena_ok(&k->mem, "checkpoint", e));
        if (llama && part)
            x->rope_heads = !k->has_cfg ? -1 : part == 'q' ? k->cfg.H : k->cfg.G;
    }
    return 0;
}

static int open_folder(struct ckfile *k, const char *dir, struct err *e)
{
    char path[1024];
    TRY(mcfg_load(&k->cfg, dir, e));
    k->has_cfg = true;
    if (file_exists(path_join(path, dir, "model.safetensors"))) {
        TRY(st_open(&k->st, path, e));
        TRY(take_st(k, &k->st, 1, e));
    } else if (file_exists(path_join(path, dir, "model.safetensors.index.json"))) {
        TRY(st_shards_open(&k->shards, path, e));
        TRY(take_st(k, k->shards.file, k->shards.n_file, e));
    } else {
        bool torch = file_exists(path_join(path, dir, "pytorch_model.bin"));
        return ERR(e, E_INPUT, "%s: neither model.safetensors nor model.safetensors.index.json in this folder%s", dir,
                   torch ? "; pytorch_model.bin is not read, save the model as safetensors" : "");
    }
    return add_file(k, path_join(path, dir, "config.json"), e);
}

static int open_gguf(struct ckfile *k, const char *path, struct err *e)
{
    struct err why = ERR_INIT;
    TRY(gguf_open(&k->g, path, e));
    k->has_cfg = mcfg_from_gguf(&k->cfg, &k->g, &why) == 0;
    if (!k->has_cfg && why.code != E_INPUT)
        return err_set(e, why.code, why.src_file, why.src_line, "%s", why.msg);
    snprintf(k->why, sizeof k->why, "%.500s", why.msg);
    return take_gguf(k, e);
}

static int open_kind(struct ckfile *k, const char *path, struct err *e)
{
    switch (k->kind) {
    case CK_FOLDER: return open_folder(k, path, e);
    case CK_GGUF: return open_gguf(k, path, e);
    case CK_SAFETENSORS:
        snprintf(k->why, sizeof k->why, "a lone safetensors file has no configuration; give its folder");
        TRY(st_open(&k->st, path, e));
        return take_st(k, &k->st, 1, e);
    case CK_INDEX:
        snprintf(k->why, sizeof k->why, "a shard index has no configuration; give its folder");
        TRY(st_shards_open(&k->shards, path, e));
        return take_st(k, k->shards.file, k->shards.n_file, e);
    case CK_CONFIG:
    case CK_TOKENIZER: break;
    }
    return ERR(e, E_INPUT, "%s: a %s holds no tensors (expected a model folder, .safetensors, .index.json or .gguf)", path,
               ckfile_kind_name(k->kind));
}

int ckfile_open(struct ckfile **out, const char *path, struct err *e)
{
    enum ckfile_kind kind;
    TRY(ckfile_kind_of(path, &kind, e));
    struct ckfile *k = calloc(1, sizeof *k);
    if (!k)
        return err_nomem(e, sizeof *k, "checkpoint");
    arena_init(&k->mem, 0);
    k->kind = kind;
    int rc = open_kind(k, path, e);
    if (rc == 0)
        qsort(k->v, k->n, sizeof *k->v, by_name);
    for (size_t i = 1; rc == 0 && i < k->n; i++)
        if (strcmp(k->v[i - 1].pub.name, k->v[i].pub.name) == 0)
            rc = ERR(e, E_INPUT, "%s: two tensors stand for '%s'", path, k->v[i].pub.name);
    if (rc != 0) {
        ckfile_close(k);
        return -1;
    }
    *out = k;
    return 0;
}

void ckfile_close(struct ckfile *k)
{
    if (!k)
        return;
    if (k->g.path[0])
        gguf_close(&k->g);
    if (k->st.path[0])
        st_close(&k->st);
    st_shards_close(&k->shards);
    mcfg_free(&k->cfg);
    arena_free(&k->mem);
    free(k);
}

const struct mcfg *ckfile_cfg(const struct ckfile *k)
{
    return k->has_cfg ? &k->cfg : NULL;
}

const char *ckfile_cfg_why(const struct ckfile *k)
{
    return k->why;
}

const struct gguf *ckfile_gguf(const struct ckfile *k)
{
    return k->kind == CK_GGUF ? &k->g : NULL;
}

size_t ckfile_count(const struct ckfile *k)
{
    return k->n;
}

const struct ck_tensor *ckfile_at(const struct ckfile *k, size_t i)
{
    return &k->v[i].pub;
}

size_t ckfile_n_files(const struct ckfile *k)
{
    return k->n_files;
}

const char *ckfile_file_path(const struct ckfile *k, size_t i)
{
    return k->files[i];
}

static const struct entry *find(const struct ckfile *k, const char *name)
{
    struct entry probe = {.pub = {.name = name}};
    return k->n ? bsearch(&probe, k->v, k->n, sizeof *k->v, by_name) : NULL;
}

const struct ck_tensor *ckfile_find(const struct ckfile *k, const char *name)
{
    char disk[256];
    const struct entry *x = find(k, name);
    if (!x && k->has_cfg && k->cfg.layout == LAYOUT_FLA)
        x = find(k, mcfg_disk_name(LAYOUT_FLA, name, disk));
    return x ? &x->pub : NULL;
}

/* ---- values ---- */

/* Elements first .. first+n-1 in file order; blocks are cut where the range cuts them. */
static int read_elems(const struct entry *x, int64_t first, int64_t n, float *dst, struct err *e)
{
    int elems = 1, bytes;
    float block[256];
    if (x->st) {
        st_to_f32(x->st->dtype, x->st->data, first, n, dst);
        return 0;
    }
    ggml_type_layout(x->gt->type, &elems, &bytes);
    while (n > 0 && (first % elems || n < elems)) { /* a partial block at either end */
        int64_t from = first % elems, m = MIN(elems - from, n);
        TRY(ggml_to_f32(x->gt->type, x->gt->data, first - from, elems, block, e));
        memcpy(dst, block + from, (size_t)m * sizeof *dst);
        first += m;
        n -= m;
        dst += m;
    }
    int64_t whole = n - n % elems;
    TRY(ggml_to_f32(x->gt->type, x->gt->data, first, whole, dst, e));
    return n > whole ? read_elems(x, first + whole, n - whole, dst + whole, e) : 0;
}

int ckfile_read_rows_f32(const struct ckfile *k, const struct ck_tensor *t, int64_t row, int64_t rows, float *dst, struct err *e)
{
    const struct entry *x = (const struct entry *)(const void *)t; /* pub is the first member */
    int64_t n_rows = t->ndim ? t->shape[0] : 1, len = n_rows ? t->n / n_rows : 0;
    if (row < 0 || rows < 0 || rows > n_rows - row)
        BUG("tensor '%s': rows %" PRId64 " + %" PRId64 " of %" PRId64, t->name, row, rows, n_rows);
    if (!t->readable)
        return ERR(e, E_INPUT, "%s: tensor '%s': type %s has no decoder here; convert the file to Q8_0, F16 or one of Q4_0 to Q6_K",
                   t->file, t->file_name, t->dtype);
    if (!x->rope_heads)
        return read_elems(x, row * len, rows * len, dst, e);
    if (x->rope_heads < 0)
        return ERR(e, E_INPUT, "%s: tensor '%s': its rows cannot be put in order without the model's metadata: %s", t->file, t->file_name,
                   k->why);
    int64_t hd = k->cfg.head_dim;
    if (n_rows != x->rope_heads * hd)
        return ERR(e, E_INPUT, "%s: tensor '%s' has %" PRId64 " rows (expected %" PRId64 " heads of %" PRId64 ")", t->file, t->file_name,
                   n_rows, x->rope_heads, hd);
    for (int64_t r = row; r < row + rows; r++, dst += len) {
        int64_t i = r % hd, in_head = i < hd / 2 ? 2 * i : 2 * (i - hd / 2) + 1;
        TRY(read_elems(x, (r - i + in_head) * len, len, dst, e));
    }
    return 0;
}

int ckfile_read_f32(const struct ckfile *k, const struct ck_tensor *t, float *dst, struct err *e)
{
    return ckfile_read_rows_f32(k, t, 0, t->ndim ? t->shape[0] : 1, dst, e);
}

static int hash_rows(const struct ckfile *k, const struct ck_tensor *t, float *buf, int64_t step, struct sha256 *s, struct err *e)
{
    int64_t n_rows = t->shape[0], len = t->n / n_rows;
    for (int64_t r = 0; r < n_rows; r += step) {
        int64_t m = MIN(step, n_rows - r);
        TRY(ckfile_read_rows_f32(k, t, r, m, buf, e));
        sha256_add(s, buf, (size_t)(m * len) * sizeof *buf);
    }
    return 0;
}

static int hash_elems(const struct ck_tensor *t, float *buf, struct sha256 *s, struct err *e)
{
    for (int64_t i = 0; i < t->n; i += CHUNK) {
        int64_t m = MIN(CHUNK, t->n - i);
        TRY(read_elems((const struct entry *)(const void *)t, i, m, buf, e));
        sha256_add(s, buf, (size_t)m * sizeof *buf);
    }
    return 0;
}

int ckfile_sha256(const struct ckfile *k, const struct ck_tensor *t, char hex[65], struct err *e)
{
    const struct entry *x = (const struct entry *)(const void *)t;
    int64_t len = t->n && x->rope_heads ? t->n / t->shape[0] : 1, step = MAX(1, CHUNK / len);
    struct sha256 s;
    if (!t->readable)
        return ckfile_read_rows_f32(k, t, 0, 0, NULL, e); /* says why */
    size_t bytes = (size_t)(x->rope_heads ? step * len : CHUNK) * sizeof(float);
    float *buf = malloc(bytes);
    if (!buf)
        return err_nomem(e, bytes, "tensor values");
    int rc = sha256_init(&s, e);
    if (rc == 0) {
        rc = x->rope_heads && t->n ? hash_rows(k, t, buf, step, &s, e) : hash_elems(t, buf, &s, e);
        sha256_end(&s, hex);
    }
    free(buf);
    return rc;
}

int ckfile_weights_sha256(const struct ckfile *k, char hex[65], struct err *e)
{
    struct sha256 s;
    char one[66];
    int rc = 0;
    TRY(sha256_init(&s, e));
    for (size_t i = 0; i < k->n && rc == 0; i++) {
        rc = ckfile_sha256(k, &k->v[i].pub, one, e);
        one[64] = '\n';
        sha256_add(&s, k->v[i].pub.name, strlen(k->v[i].pub.name) + 1);
        sha256_add(&s, one, 65);
    }
    sha256_end(&s, hex);
    return rc;
}

/* ---- against a configuration ---- */

struct match {
    const struct ckfile *k;
    bool *used;
    struct err *e;
};

static void shape_text(char dst[128], int ndim, const int64_t *shape)
{
    size_t at = 0;
    dst[0] = '\0';
    for (int i = 0; i < ndim && at < 100; i++)
        at += (size_t)snprintf(dst + at, 128 - at, "%s%" PRId64, i ? " x " : "", shape[i]);
}

static int match_one(void *ctx, const char *name, int ndim, const int64_t *shape)
{
    struct match *m = ctx;
    char got[128], want[128];
    const struct ck_tensor *t = ckfile_find(m->k, name);
    shape_text(want, ndim, shape);
    if (!t && strcmp(name, "lm_head.weight") == 0)
        return ERR(m->e, E_INPUT, "tensor 'lm_head.weight' (%s) is missing; set tie_word_embeddings if the embedding is the output matrix",
                   want);
    if (!t)
        return ERR(m->e, E_INPUT, "tensor '%s' (%s) is missing", name, want);
    m->used[(const struct entry *)(const void *)t - m->k->v] = true;
    if (t->ndim == ndim && (!ndim || memcmp(t->shape, shape, (size_t)ndim * sizeof *shape) == 0))
        return 0;
    shape_text(got, t->ndim, t->shape);
    return ERR(m->e, E_INPUT, "%s: tensor '%s' is %s, the configuration wants %s", t->file, t->name, got, want);
}

/* Not weights, or a copy of the embedding: passed over. */
static bool passed_over(const char *name, const struct mcfg *c)
{
    const char *inv = strstr(name, ".rotary_emb.inv_freq");
    return (inv && inv[20] == '\0') || strcmp(name, "rope_freqs.weight") == 0 || (c->tie_embeddings && strcmp(name, "lm_head.weight") == 0);
}

int ckfile_match(const struct ckfile *k, const struct mcfg *c, struct err *e)
{
    struct match m = {k, calloc(k->n + 1, 1), e};
    if (!m.used)
        return err_nomem(e, k->n + 1, "checkpoint");
    int rc = mcfg_each_tensor(c, match_one, &m);
    for (size_t i = 0; i < k->n && rc == 0; i++)
        if (!m.used[i] && !passed_over(k->v[i].pub.name, c))
            rc = ERR(e, E_INPUT, "%s: tensor '%s' is not part of a %s model of this configuration", k->v[i].pub.file, k->v[i].pub.name,
                     mcfg_arch_name(c->arch));
    free(m.used);
    return rc;
}

/* ---- lone files ---- */

const char *ckfile_kind_name(enum ckfile_kind k)
{
    static const char *const names[] = {[CK_FOLDER] = "model folder",  [CK_SAFETENSORS] = "safetensors file",
                                        [CK_INDEX] = "safetensors index", [CK_GGUF] = "GGUF file",
                                        [CK_CONFIG] = "model configuration",   [CK_TOKENIZER] = "tokenizer"};
    return names[k];
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int kind_of_json(const char *path, enum ckfile_kind *out, struct err *e)
{
    struct jdoc d = {0};
    TRY(jdoc_load(&d, path, 256u << 20, e));
    int rc = 0;
    if (!json_is_object(d.root))
        rc = ERR(e, E_INPUT, "%s: not a JSON object", path);
    else if (json_object_get(d.root, "weight_map"))
        *out = CK_INDEX;
    else if (json_object_get(d.root, "added_tokens") || json_object_get(d.root, "pre_tokenizer") ||
             json_is_object(json_object_get(d.root, "model")))
        *out = CK_TOKENIZER;
    else
        *out = CK_CONFIG;
    jdoc_free(&d);
    return rc;
}

static int kind_of_bytes(const char *path, enum ckfile_kind *out, struct err *e)
{
    struct file_map m;
    TRY(map_open(&m, path, e));
    bool gguf = m.len >= 4 && memcmp(m.p, "GGUF", 4) == 0, st = m.len > 8 && m.p[8] == '{';
    map_close(&m);
    *out = gguf ? CK_GGUF : CK_SAFETENSORS;
    if (gguf || st)
        return 0;
    return ERR(e, E_INPUT, "%s: neither a model folder nor a .safetensors, .index.json, .gguf, config.json or tokenizer.json file", path);
}

int ckfile_kind_of(const char *path, enum ckfile_kind *out, struct err *e)
{
    *out = CK_FOLDER;
    if (dir_exists(path))
        return 0;
    if (!file_exists(path))
        return ERR(e, E_INPUT, "'%s': no such file or folder", path);
    if (ends_with(path, ".gguf"))
        *out = CK_GGUF;
    else if (ends_with(path, ".safetensors"))
        *out = CK_SAFETENSORS;
    else if (ends_with(path, ".index.json"))
        *out = CK_INDEX;
    else if (strcmp(path_base(path), "tokenizer.json") == 0)
        *out = CK_TOKENIZER;
    else if (strcmp(path_base(path), "config.json") == 0)
        *out = CK_CONFIG;
    else if (ends_with(path, ".json"))
        return kind_of_json(path, out, e);
    else
        return kind_of_bytes(path, out, e);
    return 0;
}

static void summarise(const struct ckfile *k, struct ckfile_summary *s)
{
    const char *names[64];
    size_t count[64], n = 0, at = 0;
    for (size_t i = 0; i < k->n; i++) {
        const struct ck_tensor *t = &k->v[i].pub;
        size_t j = 0;
        while (j < n && strcmp(names[j], t->dtype) != 0)
            j++;
        if (j == n && n < ARRAY_LEN(names)) {
            names[n] = t->dtype;
            count[n++] = 0;
        }
        if (j < n)
            count[j]++;
        s->n_values += t->n;
        s->bytes += t->bytes;
    }
    for (size_t j = 0; j < n && at < sizeof s->dtypes - 48; j++)
        at += (size_t)snprintf(s->dtypes + at, sizeof s->dtypes - at, "%s%s x %zu", j ? ", " : "", names[j], count[j]);
    s->n_tensors = k->n;
    s->n_files = k->n_files;
}

int ckfile_check(const char *path, struct ckfile_summary *out, struct err *e)
{
    struct ckfile *k;
    memset(out, 0, sizeof *out);
    TRY(ckfile_kind_of(path, &out->kind, e));
    out->n_files = 1;
    if (out->kind == CK_TOKENIZER)
        return 0;
    if (out->kind == CK_CONFIG) {
        struct mcfg c;
        TRY(mcfg_load(&c, path, e));
        mcfg_free(&c);
        out->has_cfg = true;
        return 0;
    }
    TRY(ckfile_open(&k, path, e));
    int rc = k->has_cfg ? ckfile_match(k, &k->cfg, e) : 0;
    out->has_cfg = k->has_cfg;
    summarise(k, out);
    ckfile_close(k);
    return rc;
}
