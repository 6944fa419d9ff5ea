/* dashlab model info, tensors, convert: files, no computing */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids.h"
#include "core/fs.h"
#include "core/hash.h"
#include "core/jwrite.h"
#include "core/log.h"
#include "core/prog.h"
#include "model/ckfile.h"
#include "model/tok_open.h"

/* ---- info ---- */

struct info {
    const char *path;
    struct ckfile_summary sum;
    struct ckfile *k;       /* NULL for a configuration or tokenizer alone */
    struct mcfg own;        /* of a lone config.json */
    const struct mcfg *cfg; /* NULL = none */
    struct tok *tok;
    struct err tok_why;
};

static void mixers_text(const struct mcfg *c, struct str *s)
{
    for (int k = 0; k < MIX_N_KINDS; k++) {
        int64_t n = mcfg_count(c, (enum mixer_kind)k);
        if (n)
            str_printf(s, "%s%" PRId64 " %s", s->len ? ", " : "", n, mixer_name((enum mixer_kind)k));
    }
}

static void json_cfg(struct jw *w, const struct mcfg *c)
{
    jw_kstr(w, "architecture", mcfg_arch_name(c->arch));
    jw_ki64(w, "layers", c->L);
    jw_ki64(w, "hidden_size", c->d);
    jw_ki64(w, "heads", c->H);
    jw_ki64(w, "kv_heads", c->G);
    jw_ki64(w, "head_dim", c->head_dim);
    jw_ki64(w, "ffn", c->F);
    jw_ki64(w, "vocabulary", c->N);
    jw_ki64(w, "max_positions", c->max_pos);
    jw_kf64(w, "norm_eps", c->eps);
    jw_kf64(w, "rope_theta", c->rope.theta);
    jw_kbool(w, "tied_embeddings", c->tie_embeddings);
    jw_kbool(w, "qkv_bias", c->qkv_bias);
    jw_kbool(w, "qk_norm", c->qk_norm);
    jw_ki64(w, "parameters", mcfg_params(c));
    jw_key(w, "mixers");
    jw_arr(w);
    for (int64_t l = 0; l < c->L; l++)
        jw_str(w, mixer_name(c->mixer[l]));
    jw_end_arr(w);
    if (mcfg_has(c, MIX_WINDOW)) {
        jw_key(w, "windows");
        jw_arr(w);
        for (int64_t l = 0; l < c->L; l++)
            jw_i64(w, c->window[l]);
        jw_end_arr(w);
    }
    if (c->gdn.heads) {
        jw_key(w, "gdn");
        jw_obj(w);
        jw_ki64(w, "heads", c->gdn.heads);
        jw_ki64(w, "value_heads", c->gdn.v_heads);
        jw_ki64(w, "head_k_dim", c->gdn.head_k_dim);
        jw_ki64(w, "head_v_dim", c->gdn.head_v_dim);
        jw_ki64(w, "conv_size", c->gdn.conv_size);
        jw_kbool(w, "gate", c->gdn.use_gate);
        jw_end_obj(w);
    }
    if (c->dashlab.present) {
        jw_key(w, "dashlab");
        jw_obj(w);
        jw_kstr(w, "teacher", c->dashlab.teacher);
        jw_kstr(w, "teacher_sha256", c->dashlab.teacher_sha256);
        jw_kstr(w, "run", c->dashlab.run);
        jw_end_obj(w);
    }
}

static void json_tok(struct jw *w, const struct info *i)
{
    jw_key(w, "tokenizer");
    if (!i->tok) {
        jw_null(w);
        return;
    }
    jw_obj(w);
    jw_kstr(w, "family", tok_family(i->tok));
    jw_kstr(w, "normalizer", tok_normalizer(i->tok));
    jw_ki64(w, "ids", tok_vocab_size(i->tok));
    jw_ki64(w, "bos", tok_bos(i->tok));
    jw_ki64(w, "eos", tok_eos(i->tok));
    jw_kbool(w, "add_bos", tok_add_bos(i->tok));
    jw_kstr(w, "sha256", tok_sha256(i->tok));
    jw_end_obj(w);
}

/* Files of the checkpoint with sizes and hashes; a lone config.json or tokenizer.json is its own only file. */
static int each_file(const struct info *i, int (*fn)(void *ctx, const char *path, const char *hex, int64_t bytes), void *ctx, struct err *e)
{
    size_t n = i->k ? ckfile_n_files(i->k) : 1;
    for (size_t f = 0; f < n; f++) {
        const char *path = i->k ? ckfile_file_path(i->k, f) : i->path;
        char hex[65];
        TRY(sha256_file(path, hex, e));
        fn(ctx, path, hex, file_size(path));
    }
    return 0;
}

static int json_file(void *ctx, const char *path, const char *hex, int64_t bytes)
{
    struct jw *w = ctx;
    jw_obj(w);
    jw_kstr(w, "name", path_base(path));
    jw_ki64(w, "bytes", bytes);
    jw_kstr(w, "sha256", hex);
    jw_end_obj(w);
    return 0;
}

static int text_file(void *ctx, const char *path, const char *hex, int64_t bytes)
{
    str_printf(ctx, "  %s  %12" PRId64 "  %s\n", hex, bytes, path_base(path));
    return 0;
}

static int info_json(const struct info *i, struct str *out, struct err *e)
{
    struct jw w;
    jw_init(&w, out, true);
    jw_obj(&w);
    jw_kstr(&w, "path", i->path);
    jw_kstr(&w, "kind", ckfile_kind_name(i->sum.kind));
    if (i->cfg)
        json_cfg(&w, i->cfg);
    jw_ki64(&w, "tensors", (int64_t)i->sum.n_tensors);
    jw_ki64(&w, "values", i->sum.n_values);
    jw_ki64(&w, "tensor_bytes", (int64_t)i->sum.bytes);
    jw_kstr(&w, "dtypes", i->sum.dtypes);
    json_tok(&w, i);
    jw_key(&w, "files");
    jw_arr(&w);
    TRY(each_file(i, json_file, &w, e));
    jw_end_arr(&w);
    jw_end_obj(&w);
    str_putc(out, '\n');
    return jw_ok(&w, "model info", e);
}

static int info_text(const struct info *i, struct str *s, struct err *e)
{
    const struct mcfg *c = i->cfg;
    str_printf(s, "%s: %s\n", i->path, ckfile_kind_name(i->sum.kind));
    if (c) {
        struct str mix = STR_INIT;
        mixers_text(c, &mix);
        str_printf(s, "architecture  %s, %" PRId64 " layers (%s), width %" PRId64 ", FFN %" PRId64 ", vocabulary %" PRId64 "%s\n",
                   mcfg_arch_name(c->arch), c->L, str_c(&mix), c->d, c->F, c->N, c->tie_embeddings ? ", tied embeddings" : "");
        str_printf(s, "attention     %" PRId64 " heads over %" PRId64 " of %" PRId64 "%s%s, RoPE theta %g, up to %" PRId64 " positions\n",
                   c->H, c->G, c->head_dim, c->qkv_bias ? ", qkv bias" : "", c->qk_norm ? ", qk norm" : "", c->rope.theta, c->max_pos);
        if (c->gdn.heads)
            str_printf(s, "gdn           %" PRId64 " heads of %" PRId64 " x %" PRId64 ", %s, %s\n", c->gdn.heads, c->gdn.head_k_dim,
                       c->gdn.head_v_dim, c->gdn.conv_size ? "convolution" : "no convolution", c->gdn.use_gate ? "gate" : "no gate");
        str_puts(s, "mixers        ");
        for (int64_t l = 0; l < c->L; l++)
            str_printf(s, "%s%" PRId64 ":%s", l ? " " : "", l, mixer_name(c->mixer[l]));
        str_printf(s, "\nparameters    %" PRId64 "\n", mcfg_params(c));
        if (c->dashlab.present)
            str_printf(s, "made from     %s %s\n", c->dashlab.teacher, c->dashlab.teacher_sha256);
        str_free(&mix);
    } else if (i->k)
        str_printf(s, "configuration none (%s)\n", ckfile_cfg_why(i->k));
    if (i->sum.n_tensors)
        str_printf(s, "tensors       %zu, %" PRId64 " values, %zu bytes: %s\n", i->sum.n_tensors, i->sum.n_values, i->sum.bytes,
                   i->sum.dtypes);
    if (i->tok)
        str_printf(s, "tokenizer     %s, %d ids, normaliser %s, eos %d, identity %s\n", tok_family(i->tok), (int)tok_vocab_size(i->tok),
                   tok_normalizer(i->tok), (int)tok_eos(i->tok), tok_sha256(i->tok));
    else if (i->tok_why.msg[0])
        str_printf(s, "tokenizer     none (%s)\n", i->tok_why.msg);
    str_puts(s, "files\n");
    TRY(each_file(i, text_file, s, e));
    return str_ok(s, "model info", e);
}

static int info_open(struct info *i, const char *tokenizer, const char *pretok, struct err *e)
{
    TRY(ckfile_check(i->path, &i->sum, e));
    switch (i->sum.kind) {
    case CK_CONFIG:
        TRY(mcfg_load(&i->own, i->path, e));
        i->cfg = &i->own;
        return 0;
    case CK_TOKENIZER:
        return tok_load(&i->tok, i->path, pretok, e);
    case CK_FOLDER:
    case CK_SAFETENSORS:
    case CK_INDEX:
    case CK_GGUF:
        break;
    }
    TRY(ckfile_open(&i->k, i->path, e));
    i->cfg = ckfile_cfg(i->k);
    /* A tokenizer is nice to have here; without one the reason is shown. */
    if (tokenizer)
        return tok_open(&i->tok, tokenizer, pretok, e);
    if (i->sum.kind == CK_FOLDER || i->sum.kind == CK_GGUF)
        if (tok_open(&i->tok, i->path, pretok, &i->tok_why) != 0)
            i->tok = NULL;
    return 0;
}

int model_info(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[1], *tokenizer = NULL, *pretok = NULL;
    const struct opt opts[] = {MODEL_OPTS(&tokenizer, &pretok), COMMON_OPTS(&c)};
    const struct cmd_spec spec = {.synopsis = "dashlab model info PATH [OPTIONS]",
                                  .about = "What a model is. PATH: a folder, .gguf, .safetensors, *.index.json, config.json or "
                                           "tokenizer.json; it is checked as it is read.",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1,
                                  .max_pos = 1};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    struct info i = {.path = pos[0]};
    struct str out = STR_INIT;
    int rc = info_open(&i, tokenizer, pretok, e);
    if (rc == 0)
        rc = c.json ? info_json(&i, &out, e) : info_text(&i, &out, e);
    if (rc == 0)
        print_str(&out);
    str_free(&out);
    tok_free(i.tok);
    if (i.cfg == &i.own)
        mcfg_free(&i.own);
    ckfile_close(i.k);
    return rc;
}

/* ---- tensors ---- */

static int list_tensors(const struct ckfile *k, bool json, struct str *out, struct err *e)
{
    struct jw w;
    struct prog prog;
    size_t n = ckfile_count(k);
    jw_init(&w, out, true);
    if (json) {
        jw_obj(&w);
        jw_key(&w, "tensors");
        jw_arr(&w);
    }
    prog_start(&prog, "hash", "tensors", (int64_t)n);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        const struct ck_tensor *t = ckfile_at(k, i);
        char hex[65] = "";
        if (t->readable)
            rc = ckfile_sha256(k, t, hex, e);
        if (json) {
            jw_obj(&w);
            jw_kstr(&w, "name", t->name);
            if (strcmp(t->name, t->file_name) != 0)
                jw_kstr(&w, "file_name", t->file_name);
            jw_kstr(&w, "dtype", t->dtype);
            jw_key(&w, "shape");
            jw_arr(&w);
            for (int d = 0; d < t->ndim; d++)
                jw_i64(&w, t->shape[d]);
            jw_end_arr(&w);
            if (hex[0])
                jw_kstr(&w, "sha256", hex);
            else {
                jw_key(&w, "sha256");
                jw_null(&w);
            }
            jw_end_obj(&w);
        } else {
            struct str shape = STR_INIT;
            for (int d = 0; d < t->ndim; d++)
                str_printf(&shape, "%s%" PRId64, d ? "x" : "", t->shape[d]);
            str_printf(out, "%-64s %-5s %-14s %-56s\n", hex[0] ? hex : "-", t->dtype, t->ndim ? str_c(&shape) : "scalar", t->name);
            while (out->len > 1 && out->p[out->len - 2] == ' ') { /* no spaces at the end of a line */
                out->p[--out->len - 1] = '\n';
                out->p[out->len] = 0;
            }
            str_free(&shape);
        }
        prog_update(&prog, (int64_t)i + 1, NULL);
    }
    prog_end(&prog);
    if (json) {
        jw_end_arr(&w);
        jw_end_obj(&w);
        str_putc(out, '\n');
    }
    return rc == 0 ? str_ok(out, "the tensor list", e) : -1;
}

int model_tensors(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[1];
    const struct opt opts[] = {COMMON_OPTS(&c)};
    const struct cmd_spec spec = {
        .synopsis = "dashlab model tensors PATH [OPTIONS]",
        .about = "Every tensor: SHA-256 of its float32 little-endian values in Hugging Face row order, type, shape, name.",
        .opts = opts,
        .n_opts = ARRAY_LEN(opts),
        .min_pos = 1,
        .max_pos = 1};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    struct ckfile_summary sum;
    struct ckfile *k = NULL;
    struct str out = STR_INIT;
    struct tok *t = NULL;
    TRY(ckfile_check(pos[0], &sum, e));
    int rc = 0;
    if (sum.kind == CK_TOKENIZER) { /* no tensors, but its soundness is asked for all the same */
        rc = tok_load(&t, pos[0], NULL, e);
        tok_free(t);
    }
    if (rc == 0 && sum.kind != CK_TOKENIZER && sum.kind != CK_CONFIG)
        rc = ckfile_open(&k, pos[0], e) || list_tensors(k, c.json, &out, e) ? -1 : 0;
    else if (rc == 0 && c.json)
        str_puts(&out, "{\n  \"tensors\": []\n}\n");
    if (rc == 0)
        print_str(&out);
    str_free(&out);
    ckfile_close(k);
    return rc;
}

/* ---- convert ---- */

static const char *const out_dtypes[] = {"f32", "bf16", "f16", NULL};

int model_convert(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[2], *dtype = "f32";
    bool force = false;
    const struct opt opts[] = {
        O_WORD("dtype", &dtype, "f32|bf16|f16", out_dtypes, "of the weights written (A_log and dt_bias stay f32)", "Output"),
        O_FLAG("force", &force, "write into a folder that holds a model already", "Output"),
        COMMON_OPTS_BUT_DTYPE(&c),
    };
    const struct cmd_spec spec = {.synopsis = "dashlab model convert SRC DST [OPTIONS]",
                                  .about = "Writes a model (folder or .gguf) as a Hugging Face folder with its tokenizer.",
                                  .examples = "  dashlab model convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2 --dtype bf16\n",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 2,
                                  .max_pos = 2};
    bool done;
    size_t n_pos;
    char config[1024];
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    if (strlen(pos[1]) + 16 > sizeof config)
        return ERR(e, E_USAGE, "path of %zu bytes is too long", strlen(pos[1]));
    if (file_exists(path_join(config, pos[1], "config.json")) && !force)
        return ERR(e, E_USAGE, "'%s' holds a model already; give --force to replace it", pos[1]);
    struct cli_rt rt;
    struct model *m = NULL;
    struct model_open_opts mo = {0};
    TRY(cli_open(&rt, &c, "ref32", e)); /* nothing is computed: float32 in host memory is all it takes */
    int rc = model_open(&m, rt.be, pos[0], &mo, e);
    if (rc == 0)
        rc = model_save(m, pos[1], !strcmp(dtype, "f32") ? "float32" : !strcmp(dtype, "bf16") ? "bfloat16" : "float16", NULL, e);
    if (rc == 0 && c.json) {
        struct str out = STR_INIT;
        struct jw w;
        jw_init(&w, &out, true);
        jw_obj(&w);
        jw_kstr(&w, "path", pos[1]);
        jw_ki64(&w, "parameters", mcfg_params(&m->cfg));
        jw_kstr(&w, "dtype", dtype);
        jw_end_obj(&w);
        str_putc(&out, '\n');
        print_str(&out);
        str_free(&out);
    } else if (rc == 0)
        printf("%s: %" PRId64 " parameters, %s\n", pos[1], mcfg_params(&m->cfg), dtype);
    model_close(m);
    cli_close(&rt);
    return rc;
}
