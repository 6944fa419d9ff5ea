/* Sets of linear mixers, hybrids made from a teacher and such a set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/log.h"
#include "model/ckfile.h"
#include "model/model_int.h"
#include "model/st.h"
#include "model/tok_open.h"

#define SET_FILE "mixers.safetensors"

/* ---- sets ---- */

void linset_close(struct linset *s)
{
    if (!s)
        return;
    params_free(&s->params);
    free(s->mixer);
    mcfg_free(&s->cfg);
    free(s);
}

/* cfg is taken over (freed on failure, too). */
static int linset_alloc(struct linset **out, struct backend *be, struct mcfg *cfg, struct err *e)
{
    struct linset *s = calloc(1, sizeof *s);
    if (!s) {
        mcfg_free(cfg);
        return err_nomem(e, sizeof *s, "linear mixers");
    }
    s->be = s->params.be = be;
    s->cfg = *cfg;
    s->mixer = calloc((size_t)cfg->L, sizeof *s->mixer);
    int rc = s->mixer ? 0 : err_nomem(e, (size_t)cfg->L * sizeof *s->mixer, "linear mixers");
    for (int64_t l = 0; l < cfg->L && rc == 0; l++) {
        char prefix[96];
        snprintf(prefix, sizeof prefix, "model.layers.%" PRId64 ".self_attn.", l);
        rc = mixer_build(&s->mixer[l], mixer_type_of(MIX_GDN), &s->cfg, l, prefix, &s->params, NULL, false, true, e);
    }
    if (rc != 0) {
        linset_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

static void all_linear(struct mcfg *c)
{
    for (int64_t l = 0; l < c->L; l++) {
        c->mixer[l] = MIX_GDN;
        c->window[l] = 0;
    }
    c->layout = LAYOUT_FLA;
}

static void name_teacher(struct mcfg *c, const struct model *teacher)
{
    c->dashlab.present = true;
    c->dashlab.version = MCFG_DASHLAB_VERSION;
    snprintf(c->dashlab.teacher, sizeof c->dashlab.teacher, "%s", path_base(teacher->path));
    snprintf(c->dashlab.teacher_sha256, sizeof c->dashlab.teacher_sha256, "%s", teacher->sha256);
}

int linset_make(struct linset **out, const struct model *teacher, const struct linset_opts *o, struct err *e)
{
    struct mcfg c;
    struct linset *s;
    TRY(mcfg_copy(&c, &teacher->cfg, e));
    all_linear(&c);
    name_teacher(&c, teacher);
    c.dashlab.kv_expand = o->init.kv_expand;
    int64_t heads = o->heads ? o->heads : c.H;
    c.gdn = (struct mcfg_gdn){.heads = heads,
                              .v_heads = heads,
                              .head_k_dim = o->head_k_dim ? o->head_k_dim : c.head_dim,
                              .head_v_dim = o->head_v_dim ? o->head_v_dim : c.head_dim,
                              .conv_size = o->conv ? 4 : 0,
                              .use_gate = o->gate,
                              .norm_eps = o->norm_eps > 0 ? o->norm_eps : 1e-6};
    if (mcfg_check(&c, "linear mixers", e) != 0) {
        mcfg_free(&c);
        return -1;
    }
    TRY(linset_alloc(&s, teacher->be, &c, e));
    s->init = o->init;
    for (int64_t l = 0; l < s->cfg.L; l++) {
        const struct mixer *attn = teacher->layer[l].attn;
        if (!attn || s->mixer[l].type->init_from(s->be, &s->mixer[l], attn, &o->init, e) != 0) {
            if (!attn)
                ERR(e, E_USAGE, "layer %" PRId64 " of the teacher has no attention to start from", l);
            linset_close(s);
            return -1;
        }
    }
    *out = s;
    return 0;
}

int linset_alike(const struct linset *s, const struct mcfg *teacher, struct err *e)
{
    if (s->cfg.L != teacher->L || s->cfg.d != teacher->d)
        return ERR(e, E_INPUT, "the linear mixers are for %" PRId64 " layers of width %" PRId64 ", the teacher has %" PRId64 " of %" PRId64,
                   s->cfg.L, s->cfg.d, teacher->L, teacher->d);
    return 0;
}

/* ---- sets on disk ---- */

static enum st_dtype dtype_of(const char *dtype, const char *name)
{
    size_t n = strlen(name);
    bool exact = (n > 5 && !strcmp(name + n - 5, "A_log")) ||
                 (n > 7 && !strcmp(name + n - 7, "dt_bias")); /* bf16 would move the decay by up to 0.8 % */
    return exact || !strcmp(dtype, "float32") ? ST_F32 : !strcmp(dtype, "float16") ? ST_F16 : ST_BF16;
}

static int check_dtype(const char *dtype, struct err *e)
{
    if (strcmp(dtype, "float32") && strcmp(dtype, "bfloat16") && strcmp(dtype, "float16"))
        return ERR(e, E_USAGE, "weights can be written as float32, bfloat16 or float16, not as '%s'", dtype);
    return 0;
}

static int declare(struct st_out *w, const struct param *p, const char *disk, const char *dtype, struct err *e)
{
    return st_out_declare(w, disk, dtype_of(dtype, disk), p->ndim, p->dims, e);
}

static int write_values(struct st_out *w, struct backend *be, const struct param *p, const char *disk, struct err *e)
{
    const int64_t piece = 4 << 20;
    float *v = malloc((size_t)MIN(p->n, piece) * sizeof *v);
    int rc = v ? 0 : err_nomem(e, (size_t)MIN(p->n, piece) * sizeof *v, "writing weights");
    for (int64_t at = 0; at < p->n && rc == 0; at += piece) {
        int64_t n = MIN(piece, p->n - at);
        rc = get_f32(be, v, view_at(p->w, at, n), e) || st_out_f32(w, disk, v, n, e) ? -1 : 0;
    }
    free(v);
    return rc;
}

/* Declares and writes params[n] under their disk names; w is freed. */
static int write_params(struct st_out *w, struct backend *be, const struct param *const *p, const char (*disk)[256], size_t n,
                        const char *dtype, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = declare(w, p[i], disk[i], dtype, e);
    if (rc == 0)
        rc = st_out_begin(w, e);
    for (size_t i = 0; i < n && rc == 0; i++)
        rc = write_values(w, be, p[i], disk[i], e);
    if (rc == 0)
        return st_out_commit(w, e);
    st_out_abort(w);
    return -1;
}

static int write_config(const struct mcfg *c, const char *dir, const char *dtype, struct err *e)
{
    struct str text = STR_INIT;
    char path[1024];
    int rc = mcfg_write_json(c, dtype, &text, e);
    if (rc == 0)
        rc = file_write(path_join(path, dir, "config.json"), str_c(&text), text.len, e);
    str_free(&text);
    return rc;
}

int linset_save(const struct linset *s, const char *dir, const char *dtype, struct err *e)
{
    char path[1024];
    struct st_out *w;
    TRY(check_dtype(dtype, e));
    TRY(mkdir_p(dir, e));
    char(*disk)[256] = calloc(s->params.n, sizeof *disk);
    if (!disk)
        return err_nomem(e, s->params.n * sizeof *disk, "tensor names");
    for (size_t i = 0; i < s->params.n; i++)
        mcfg_disk_name(LAYOUT_FLA, s->params.v[i]->name, disk[i]);
    int rc = st_out_open(&w, path_join(path, dir, SET_FILE), e);
    if (rc == 0)
        rc = write_params(w, s->be, (const struct param *const *)s->params.v, (const char(*)[256])disk, s->params.n, dtype, e);
    free(disk);
    return rc == 0 ? write_config(&s->cfg, dir, dtype, e) : -1;
}

static int load_tensor(struct backend *be, const struct st_tensor *t, const char *file, const struct param *p, struct err *e)
{
    if (t->n != p->n || t->ndim != p->ndim || (t->dtype != ST_F32 && t->dtype != ST_BF16 && t->dtype != ST_F16))
        return ERR(e, E_INPUT, "%s: tensor '%s' has %" PRId64 " %s values in %d dimensions; %" PRId64 " floats in %d are expected", file,
                   t->name, t->n, st_dtype_name(t->dtype), t->ndim, p->n, p->ndim);
    for (int i = 0; i < t->ndim; i++)
        if (t->shape[i] != p->dims[i])
            return ERR(e, E_INPUT, "%s: tensor '%s' has %" PRId64 " at dimension %d; %" PRId64 " expected", file, t->name, t->shape[i], i,
                       p->dims[i]);
    float *v = malloc((size_t)p->n * sizeof *v);
    if (!v)
        return err_nomem(e, (size_t)p->n * sizeof *v, t->name);
    st_to_f32(t->dtype, t->data, 0, t->n, v);
    int rc = put_f32(be, p->w, v, e);
    free(v);
    return rc;
}

/* From mixers.safetensors: exactly the mixers' tensors. */
static int load_set_file(struct linset *s, const char *path, struct err *e)
{
    struct st_file f;
    TRY(st_open(&f, path, e));
    int rc = 0;
    for (size_t i = 0; i < s->params.n && rc == 0; i++) {
        char disk[256];
        const struct st_tensor *t = st_find(&f, mcfg_disk_name(LAYOUT_FLA, s->params.v[i]->name, disk));
        rc = t ? load_tensor(s->be, t, path, s->params.v[i], e) : ERR(e, E_INPUT, "%s: tensor '%s' is missing", path, disk);
    }
    if (rc == 0 && f.n != s->params.n)
        rc = ERR(e, E_INPUT, "%s: has %zu tensors, the configuration beside it asks for %zu", path, f.n, s->params.n);
    st_close(&f);
    return rc;
}

static int load_set_model(struct linset *s, const char *dir, struct err *e)
{
    struct ckfile *k;
    TRY(ckfile_open(&k, dir, e));
    int rc = 0;
    for (size_t i = 0; i < s->params.n && rc == 0; i++) {
        const struct param *p = s->params.v[i];
        const struct ck_tensor *t = ckfile_find(k, p->name);
        float *v = malloc((size_t)p->n * sizeof *v);
        if (!v)
            rc = err_nomem(e, (size_t)p->n * sizeof *v, p->name);
        else if (!t || t->n != p->n)
            rc = ERR(e, E_INPUT, "%s: tensor '%s' is %s", dir, p->name, t ? "of another size" : "missing");
        else
            rc = ckfile_read_f32(k, t, v, e) || put_f32(s->be, p->w, v, e) ? -1 : 0;
        free(v);
    }
    ckfile_close(k);
    return rc;
}

int linset_load(struct linset **out, struct backend *be, const char *dir, struct err *e)
{
    struct mcfg c;
    struct linset *s;
    char path[1024];
    TRY(mcfg_load(&c, dir, e));
    if (mcfg_count(&c, MIX_GDN) != c.L) {
        int rc = ERR(e, E_INPUT, "'%s' has linear mixers in %" PRId64 " of %" PRId64 " layers; a set of all layers is needed", dir,
                     mcfg_count(&c, MIX_GDN), c.L);
        mcfg_free(&c);
        return rc;
    }
    TRY(linset_alloc(&s, be, &c, e));
    s->init.kv_expand = s->cfg.dashlab.kv_expand;
    path_join(path, dir, SET_FILE);
    if ((file_exists(path) ? load_set_file(s, path, e) : load_set_model(s, dir, e)) != 0) {
        linset_close(s);
        return -1;
    }
    *out = s;
    return 0;
}

/* ---- hybrids ---- */

static int hybrid_cfg(struct mcfg *c, const struct model *teacher, const struct linset *lin, const struct assemble_opts *o, struct err *e)
{
    bool linear = false;
    TRY(mcfg_copy(c, &teacher->cfg, e));
    for (int64_t l = 0; l < c->L; l++) {
        unsigned ops = o->ops[l];
        c->mixer[l] = ops == MIX_BIT(MIX_GDN) ? MIX_GDN : ops == MIX_BIT(MIX_WINDOW) ? MIX_WINDOW : MIX_FULL;
        c->window[l] = ops & MIX_BIT(MIX_WINDOW) ? o->window : 0;
        linear |= (ops & MIX_BIT(MIX_GDN)) != 0;
        if (!ops || ops >> MIX_N_KINDS || ((ops & MIX_BIT(MIX_WINDOW)) && o->window < 1))
            return ERR(e, E_USAGE, "layer %" PRId64 ": operators %#x with window %" PRId64 " are not possible", l, ops, o->window);
    }
    if (linear && lin)
        c->gdn = lin->cfg.gdn;
    else if (!linear)
        c->gdn = (struct mcfg_gdn){0};
    if (linear) {
        c->layout = LAYOUT_FLA;
        c->dashlab.kv_expand = lin ? lin->cfg.dashlab.kv_expand : c->dashlab.kv_expand;
    }
    name_teacher(c, teacher);
    return 0;
}

int model_assemble(struct model **out, const struct model *teacher, const struct linset *lin, const struct assemble_opts *o, struct err *e)
{
    if (lin)
        TRY(linset_alike(lin, &teacher->cfg, e));
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, sizeof *m, "a model");
    m->be = m->params.be = teacher->be;
    snprintf(m->tok_path, sizeof m->tok_path, "%s", teacher->tok_path);
    m->tok = teacher->tok;
    m->borrows_tok = true;
    int rc = hybrid_cfg(&m->cfg, teacher, lin, o, e);
    if (rc == 0)
        rc = model_build(m, o->ops, &(struct build_from){.teacher = teacher, .lin = lin, .copy = o->copy}, o->copy, e);
    for (int64_t l = 0; rc == 0 && l < m->cfg.L; l++)
        rc = model_set_ops(m, l, o->ops[l], NULL, 0, e);
    if (rc == 0)
        rc = be_sync(m->be, e);
    if (rc != 0) {
        model_close(m);
        return -1;
    }
    *out = m;
    return 0;
}

/* ---- a whole model on disk ---- */

static const char *const tokenizer_files[] = {
    "tokenizer.json",    "tokenizer_config.json",  "vocab.json",         "merges.txt", "special_tokens_map.json",
    "added_tokens.json", "generation_config.json", "chat_template.jinja"};

/* A GGUF file has its tokenizer inside. One that is not implemented does not keep the weights from being written. */
static int export_gguf(const char *src, const char *dir, struct err *e)
{
    struct gguf g;
    struct err why = ERR_INIT;
    TRY(gguf_open(&g, src, e));
    int rc = tok_export_gguf(&g, NULL, dir, &why);
    gguf_close(&g);
    if (rc != 0 && why.code == E_INPUT) {
        log_warn("no tokenizer written to '%s': %s", dir, why.msg);
        return 0;
    }
    if (rc != 0)
        *e = why;
    return rc;
}

static int copy_tokenizer(const struct model *m, const char *dir, struct err *e)
{
    char from[1024], to[1024], src[1024];
    if (!m->tok_path[0])
        return 0;
    snprintf(src, sizeof src, "%s", m->tok_path);
    if (!dir_exists(src)) { /* a file: what stands beside it */
        char *slash = strrchr(src, '/');
        size_t n = strlen(src);
        if (n > 5 && !strcmp(src + n - 5, ".gguf"))
            return export_gguf(src, dir, e);
        if (slash)
            *slash = 0;
        else
            snprintf(src, sizeof src, ".");
    }
    for (size_t i = 0; i < ARRAY_LEN(tokenizer_files); i++) {
        struct str text = STR_INIT;
        path_join(from, src, tokenizer_files[i]);
        if (!file_exists(from))
            continue;
        int rc = file_read(from, 0, &text, e);
        if (rc == 0)
            rc = file_write(path_join(to, dir, tokenizer_files[i]), str_c(&text), text.len, e);
        str_free(&text);
        if (rc != 0)
            return -1;
    }
    return 0;
}

struct listing {
    const struct model *m;
    const struct param **p;
    char (*disk)[256];
    size_t n;
    bool missing;
    char name[256];
};

/* A canonical name of a layer with one operator -> its parameter; the linear mixer of a layer that also has attention goes by another name
 * in memory. */
static int list_tensor(void *ctx, const char *name, int ndim, const int64_t *shape)
{
    struct listing *l = ctx;
    char own[256];
    long layer;
    UNUSED(ndim);
    UNUSED(shape);
    snprintf(own, sizeof own, "%s", name);
    const char *mixer = strstr(name, ".self_attn.");
    if (mixer && sscanf(name, "model.layers.%ld.", &layer) == 1 && l->m->cfg.mixer[layer] == MIX_GDN && l->m->layer[layer].attn)
        snprintf(own, sizeof own, "%.*s.linear_attn.%s", (int)(mixer - name), name, mixer + strlen(".self_attn."));
    const struct param *p = params_find(&l->m->params, own);
    if (!p) {
        l->missing = true;
        snprintf(l->name, sizeof l->name, "%s", own);
        return 1;
    }
    l->p[l->n] = p;
    mcfg_disk_name(l->m->cfg.layout, name, l->disk[l->n++]);
    return 0;
}

int model_save(const struct model *m, const char *dir, const char *dtype, const char *run_key, struct err *e)
{
    struct mcfg c;
    struct st_out *w;
    TRY(check_dtype(dtype, e));
    for (int64_t l = 0; l < m->cfg.L; l++)
        if (m->layer[l].ops & (m->layer[l].ops - 1))
            return ERR(e, E_USAGE, "layer %" PRId64 " is a mixture of operators; choose one for every layer before saving", l);
    TRY(mkdir_p(dir, e));
    struct listing list = {.m = m, .p = calloc(m->params.n + 1, sizeof *list.p), .disk = calloc(m->params.n + 1, sizeof *list.disk)};
    int rc = list.p && list.disk ? 0 : err_nomem(e, m->params.n * 264, "tensor names");
    if (rc == 0 && mcfg_each_tensor(&m->cfg, list_tensor, &list) != 0)
        BUG("model has no parameter '%s'", list.name);
    if (rc == 0)
        rc = st_out_open_dir(&w, dir, 0, e);
    if (rc == 0)
        rc = write_params(w, m->be, list.p, (const char(*)[256])list.disk, list.n, dtype, e);
    free(list.p);
    free(list.disk);
    if (rc != 0)
        return -1;
    TRY(mcfg_copy(&c, &m->cfg, e));
    if (run_key)
        snprintf(c.dashlab.run, sizeof c.dashlab.run, "%s", run_key);
    rc = write_config(&c, dir, dtype, e);
    mcfg_free(&c);
    return rc == 0 ? copy_tokenizer(m, dir, e) : -1;
}
