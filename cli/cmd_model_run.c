/* dashlab model logprobs, forward, generate */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/ids.h"
#include "core/jwrite.h"
#include "core/prog.h"
#include "kernels/ops.h"
#include "model/cache.h"
#include "model/chat.h"
#include "model/st.h"
#include "model/tok_open.h"

static const char *const backend_words[] = {"ref64", "ref32", "cpu", "cuda", NULL};

/* ---- logprobs ---- */

static int last_top5(struct model *m, const struct tok_ids *ids, struct top_id top[5], struct err *e)
{
    struct acts a = {0};
    struct batch b = {0};
    struct view hidden;
    const int32_t *p = ids->v;
    int32_t n = (int32_t)ids->n;
    int rc = acts_open(&a, m, &(struct acts_opts){.rows = n, .seqs = 1}, e);
    if (rc == 0)
        rc = batch_open(&b, m->be, n, 1, e);
    if (rc == 0)
        rc = batch_set(&b, 1, &p, &n, NULL, m->cfg.N, e) || model_fwd(m, &a, &b, NULL, &hidden, e) ||
                     model_topk(m, view_at(hidden, (n - 1) * m->cfg.d, m->cfg.d), (int)MIN((int64_t)5, m->cfg.N), top, e)
                 ? -1
                 : 0;
    acts_close(&a);
    batch_close(&b);
    return rc;
}

static void print_logprobs(const struct model *m, const struct tok_ids *ids, const double *lp, const struct top_id *top, bool json)
{
    struct str s = STR_INIT;
    double sum = 0;
    size_t n_top = (size_t)MIN((int64_t)5, m->cfg.N);
    if (json) {
        struct jw w;
        jw_init(&w, &s, false);
        jw_obj(&w);
        jw_key(&w, "ids");
        jw_arr(&w);
        for (size_t i = 0; i < ids->n; i++)
            jw_i64(&w, ids->v[i]);
        jw_end_arr(&w);
        jw_key(&w, "logprob");
        jw_arr(&w);
        jw_null(&w);
        for (size_t i = 1; i < ids->n; i++)
            jw_f64(&w, lp[i]);
        jw_end_arr(&w);
        jw_key(&w, "top5");
        jw_arr(&w);
        for (size_t i = 0; i < n_top; i++) {
            jw_arr(&w);
            jw_i64(&w, top[i].id);
            jw_f64(&w, top[i].logit);
            jw_end_arr(&w);
        }
        jw_end_arr(&w);
        jw_end_obj(&w);
        str_putc(&s, '\n');
    } else {
        for (size_t i = 0; i < ids->n; i++) {
            struct str text = STR_INIT, shown = STR_INIT;
            struct jw w;
            struct err ignored = ERR_INIT;
            if (m->tok && tok_decode(m->tok, ids->v + i, 1, false, &text, &ignored) == 0) {
                jw_init(&w, &shown, false);
                jw_strn(&w, str_c(&text), text.len);
            }
            sum += i ? lp[i] : 0;
            if (i)
                str_printf(&s, "%6zu %8d %12.6f  %s\n", i, (int)ids->v[i], lp[i], str_c(&shown));
            else
                str_printf(&s, "%6zu %8d %12s  %s\n", i, (int)ids->v[i], "-", str_c(&shown));
            str_free(&text);
            str_free(&shown);
        }
        str_printf(&s, "sum %.6f over %zu tokens\ntop of the next position:", sum, ids->n - 1);
        for (size_t i = 0; i < n_top; i++)
            str_printf(&s, " %d (%.5f)", (int)top[i].id, top[i].logit);
        str_putc(&s, '\n');
    }
    print_str(&s);
    str_free(&s);
}

int model_logprobs(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[1], *text = NULL, *file = NULL, *ids_path = NULL, *tokenizer = NULL, *pretok = NULL, *backend = NULL;
    int64_t rows = 0;
    bool no_special = false;
    const struct opt opts[] = {
        O_STR("text", &text, "S", "the text", "Text"),
        O_STR("file", &file, "F", "a file, - for standard input", "Text"),
        O_STR("ids", &ids_path, "F", "token ids (.u16, .i32, .safetensors, JSON or numbers)", "Text"),
        O_FLAG("no-special", &no_special, "add nothing before the text (no BOS)", "Text"),
        MODEL_OPTS(&tokenizer, &pretok),
        O_INT("batch", &rows, 0, 1 << 24, "tokens computed at once, 0 = 2048", "Model"),
        O_WORD("backend", &backend, "NAME", backend_words, "ref64, ref32, cpu or cuda in place of --device", "Model"),
        COMMON_OPTS(&c),
    };
    const struct cmd_spec spec = {.synopsis = "dashlab model logprobs PATH (--text S | --file F | --ids F) [OPTIONS]",
                                  .about =
                                      "Natural-log probability of every token given those before it, and the five most probable next ones.",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1,
                                  .max_pos = 1};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    struct cli_rt rt;
    struct model *m = NULL;
    struct tok_ids ids = {0};
    struct top_id top[5];
    double *lp = NULL;
    TRY(cli_open(&rt, &c, backend, e));
    struct model_open_opts mo = {.want_tokenizer = ids_path == NULL || tokenizer, .tokenizer = tokenizer, .pretok = pretok};
    int rc = model_open(&m, rt.be, pos[0], &mo, e);
    if (rc == 0)
        rc = ids_from(m->tok, text, file, ids_path, !no_special, &ids, e);
    if (rc == 0 && !ids.n)
        rc = ERR(e, E_INPUT, "the text has no tokens");
    if (rc == 0 && !(lp = calloc(ids.n, sizeof *lp)))
        rc = err_nomem(e, ids.n * sizeof *lp, "log-probabilities");
    if (rc == 0) {
        const int32_t *p = ids.v;
        int32_t n = (int32_t)ids.n;
        rc = score_logprobs(m, 1, &p, &n, rows, &lp, NULL, e) || last_top5(m, &ids, top, e) ? -1 : 0;
    }
    if (rc == 0)
        print_logprobs(m, &ids, lp, top, c.json);
    free(lp);
    tok_ids_free(&ids);
    model_close(m);
    cli_close(&rt);
    return rc;
}

/* ---- forward ---- */

/* Host copies of what the forward shows, as doubles. */
struct dump {
    struct model *m;
    struct acts acts;
    struct batch batch;
    int64_t T, d, L, N;
    double *hidden, *attn, *logits, loss;
    struct err err; /* first failure inside a hook */
};

static void on_mixer(void *ctx, int64_t l, struct view h, struct view y)
{
    struct dump *d = ctx;
    UNUSED(h);
    if (d->err.code == E_OK)
        get_f64(d->m->be, d->attn + l * d->T * d->d, y, &d->err);
}

static void on_stream(void *ctx, int64_t i, struct view x)
{
    struct dump *d = ctx;
    if (d->err.code == E_OK)
        get_f64(d->m->be, d->hidden + i * d->T * d->d, x, &d->err);
}

static int put_f64(struct backend *be, struct view dst, const double *src, struct err *e)
{
    if (dst.dt == DT_F64) {
        be_put(be, dst, src);
        return be_sync(be, e);
    }
    float *tmp = malloc((size_t)dst.n * sizeof *tmp);
    if (!tmp)
        return err_nomem(e, (size_t)dst.n * sizeof *tmp, "a conversion");
    for (int64_t i = 0; i < dst.n; i++)
        tmp[i] = (float)src[i];
    int rc = put_f32(be, dst, tmp, e);
    free(tmp);
    return rc;
}

/* Loss = mean of -log p(ids[t+1]) over T-1 positions; with grads also the backward. */
static int dump_loss(struct dump *d, const int32_t *ids, struct view hidden, bool grads, struct err *e)
{
    struct backend *be = d->m->be;
    const struct param *head = model_head(d->m);
    struct view lp = NO_VIEW, dh = NO_VIEW, target = NO_VIEW, wt = NO_VIEW;
    int32_t *t = malloc((size_t)d->T * sizeof *t);
    double *w = malloc((size_t)d->T * sizeof *w);
    int rc = t && w ? 0 : err_nomem(e, (size_t)d->T * 12, "targets");
    for (int64_t i = 0; i < d->T && rc == 0; i++) {
        t[i] = i + 1 < d->T ? ids[i + 1] : -1;
        w[i] = i + 1 < d->T ? 1.0 / (double)(d->T - 1) : 0;
    }
    if (rc == 0)
        rc = be_view(be, be->stat, d->T, &lp, e) || be_view(be, be->act, d->T * d->d, &dh, e) || be_view(be, DT_I32, d->T, &target, e) ||
                     be_view(be, be->stat, d->T, &wt, e) || put_f64(be, wt, w, e)
                 ? -1
                 : 0;
    if (rc == 0) {
        be_put(be, target, t);
        be_head_ce(be, &(struct op_head_ce){.lp = lp,
                                            .dh = grads ? dh : NO_VIEW,
                                            .dw = grads ? head->g : NO_VIEW,
                                            .h = hidden,
                                            .w = head->w,
                                            .target = target,
                                            .wt = wt,
                                            .rows = d->T,
                                            .dim = d->d,
                                            .vocab = d->N});
        rc = get_f64(be, w, lp, e);
    }
    for (int64_t i = 0; i + 1 < d->T && rc == 0; i++)
        d->loss -= w[i] / (double)(d->T - 1);
    if (rc == 0 && grads)
        rc = model_bwd(d->m, &d->acts, &d->batch, dh, &(struct bwd_opts){.wgrad = true}, e);
    be_view_free(be, &lp);
    be_view_free(be, &dh);
    be_view_free(be, &target);
    be_view_free(be, &wt);
    free(t);
    free(w);
    return rc;
}

static int put_tensor(struct st_out *o, const char *name, bool f64, const double *v, int64_t n, struct err *e)
{
    if (f64)
        return st_out_raw(o, name, v, (size_t)n * sizeof *v, e);
    float *tmp = malloc((size_t)n * sizeof *tmp);
    if (!tmp)
        return err_nomem(e, (size_t)n * sizeof *tmp, name);
    for (int64_t i = 0; i < n; i++)
        tmp[i] = (float)v[i];
    int rc = st_out_f32(o, name, tmp, n, e);
    free(tmp);
    return rc;
}

static int put_grads(struct st_out *o, struct model *m, bool f64, struct err *e)
{
    int rc = 0;
    for (size_t i = 0; i < m->params.n && rc == 0; i++) {
        const struct param *p = m->params.v[i];
        double *v = malloc((size_t)p->n * sizeof *v);
        rc = v ? get_f64(m->be, v, p->g, e) : err_nomem(e, (size_t)p->n * sizeof *v, p->name);
        if (rc == 0)
            rc = put_tensor(o, p->name, f64, v, p->n, e);
        free(v);
    }
    return rc;
}

static int dump_write(struct dump *d, const char *path, const int32_t *ids, bool grads, struct err *e)
{
    const bool f64 = d->m->be->act == DT_F64;
    const enum st_dtype dt = f64 ? ST_F64 : ST_F32;
    const int64_t h[3] = {d->L + 1, d->T, d->d}, a[3] = {d->L, d->T, d->d}, z[2] = {d->T, d->N}, one = 1;
    struct st_out *o;
    TRY(st_out_open(&o, path, e));
    int rc = st_out_declare(o, "attn_out", dt, 3, a, e) || st_out_declare(o, "hidden", dt, 3, h, e) ||
                     st_out_declare(o, "input_ids", ST_I32, 1, &d->T, e) || st_out_declare(o, "logits", dt, 2, z, e) ||
                     st_out_declare(o, "loss", ST_F64, 1, &one, e)
                 ? -1
                 : 0;
    for (size_t i = 0; grads && i < d->m->params.n && rc == 0; i++)
        rc = st_out_declare(o, d->m->params.v[i]->name, dt, d->m->params.v[i]->ndim, d->m->params.v[i]->dims, e);
    if (rc == 0)
        rc = st_out_begin(o, e) || put_tensor(o, "attn_out", f64, d->attn, d->L * d->T * d->d, e) ||
                     put_tensor(o, "hidden", f64, d->hidden, (d->L + 1) * d->T * d->d, e) ||
                     st_out_raw(o, "input_ids", ids, (size_t)d->T * sizeof *ids, e) ||
                     put_tensor(o, "logits", f64, d->logits, d->T * d->N, e) || st_out_raw(o, "loss", &d->loss, sizeof d->loss, e) ||
                     (grads && put_grads(o, d->m, f64, e))
                 ? -1
                 : 0;
    if (rc == 0)
        return st_out_commit(o, e);
    st_out_abort(o);
    return -1;
}

/* Tables rope_cos and rope_sin of a file with expected values. */
static int rope_from(struct model *m, const char *path, struct err *e)
{
    struct st_file f;
    double *v[2] = {NULL, NULL};
    const char *const names[2] = {"rope_cos", "rope_sin"};
    int64_t half = m->cfg.head_dim / 2, rows = 0;
    TRY(st_open(&f, path, e));
    int rc = 0;
    for (int k = 0; k < 2 && rc == 0; k++) {
        const struct st_tensor *t = st_find(&f, names[k]);
        if (!t || t->dtype != ST_F32 || t->ndim != 2 || t->shape[1] != half || (k && t->shape[0] != rows)) {
            rc = ERR(e, E_INPUT, "'%s' has no F32 tensor '%s' of [rows, %" PRId64 "]", path, names[k], half);
            break;
        }
        rows = t->shape[0];
        float *tmp = malloc((size_t)t->n * sizeof *tmp);
        v[k] = malloc((size_t)t->n * sizeof **v);
        if (!tmp || !v[k])
            rc = err_nomem(e, (size_t)t->n * 12, "rotary tables");
        if (rc == 0)
            st_to_f32(ST_F32, t->data, 0, t->n, tmp);
        for (int64_t i = 0; rc == 0 && i < t->n; i++)
            v[k][i] = (double)tmp[i];
        free(tmp);
    }
    if (rc == 0)
        rc = model_set_rope(m, v[0], v[1], rows, e);
    free(v[0]);
    free(v[1]);
    st_close(&f);
    return rc;
}

static int dump_run(struct dump *d, const struct tok_ids *ids, bool grads, struct err *e)
{
    struct model *m = d->m;
    const int32_t *p = ids->v;
    int32_t n = (int32_t)ids->n;
    struct view hidden;
    *d = (struct dump){.m = m, .T = n, .d = m->cfg.d, .L = m->cfg.L, .N = m->cfg.N};
    size_t stream = (size_t)(d->T * d->d);
    d->hidden = calloc((size_t)(d->L + 1) * stream, sizeof(double));
    d->attn = calloc((size_t)d->L * stream, sizeof(double));
    d->logits = calloc((size_t)(d->T * d->N), sizeof(double));
    if (!d->hidden || !d->attn || !d->logits)
        return err_nomem(e, (size_t)(d->T * d->N) * sizeof(double), "the dump");
    params_set_trainable(&m->params, -1, grads);
    TRY(params_alloc(&m->params, grads, false, e));
    TRY(acts_open(&d->acts, m, &(struct acts_opts){.rows = n, .seqs = 1, .train = grads, .wgrad = grads}, e));
    TRY(batch_open(&d->batch, m->be, n, 1, e));
    TRY(batch_set(&d->batch, 1, &p, &n, NULL, m->cfg.N, e));
    TRY(model_fwd(m, &d->acts, &d->batch, &(struct fwd_opts){.save = grads, .ctx = d, .on_mixer = on_mixer, .on_stream = on_stream},
                  &hidden, e));
    if (d->err.code != E_OK) {
        *e = d->err;
        return -1;
    }
    TRY(model_logits(m, hidden, n, d->logits, e));
    return n > 1 ? dump_loss(d, ids->v, hidden, grads, e) : 0;
}

int model_forward(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[1], *ids_path = NULL, *out = NULL, *backend = NULL, *rope = NULL;
    bool grads = false;
    const struct opt opts[] = {
        O_STR("ids", &ids_path, "F", "token ids (.u16, .i32, .safetensors, JSON or numbers)", "Forward"),
        O_STR("out", &out, "X.safetensors", "hidden, attn_out, logits, loss, input_ids (float64 from ref64, else float32)", "Forward"),
        O_WORD("backend", &backend, "NAME", backend_words, "ref64, ref32, cpu or cuda in place of --device", "Forward"),
        O_FLAG("grads", &grads, "also the gradient of the mean next-token loss, by parameter name", "Forward"),
        O_STR("rope-from", &rope, "F", "rotary tables rope_cos, rope_sin of this file", "Forward"),
        COMMON_OPTS(&c),
    };
    const struct cmd_spec spec = {.synopsis = "dashlab model forward PATH --ids F --out X.safetensors [OPTIONS]",
                                  .about = "One forward (and backward) pass, everything written to a file.",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1,
                                  .max_pos = 1};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    if (!ids_path || !out)
        return ERR(e, E_USAGE, "%s is missing", ids_path ? "--out" : "--ids");
    struct cli_rt rt;
    struct model *m = NULL;
    struct tok_ids ids = {0};
    struct dump d = {0};
    struct model_open_opts mo = {0};
    TRY(cli_open(&rt, &c, backend, e));
    int rc = model_open(&m, rt.be, pos[0], &mo, e);
    if (rc == 0)
        rc = ids_read(ids_path, &ids, e);
    if (rc == 0 && !ids.n)
        rc = ERR(e, E_INPUT, "'%s' has no ids", ids_path);
    if (rc == 0 && rope)
        rc = rope_from(m, rope, e);
    d.m = m;
    if (rc == 0)
        rc = dump_run(&d, &ids, grads, e) || dump_write(&d, out, ids.v, grads, e) ? -1 : 0;
    if (rc == 0 && c.json) {
        struct str s = STR_INIT;
        struct jw w;
        jw_init(&w, &s, true);
        jw_obj(&w);
        jw_ki64(&w, "tokens", d.T);
        jw_kf64(&w, "loss", d.loss);
        jw_kstr(&w, "backend", rt.be->ops->name);
        jw_kstr(&w, "out", out);
        jw_end_obj(&w);
        str_putc(&s, '\n');
        print_str(&s);
        str_free(&s);
    } else if (rc == 0)
        printf("%" PRId64 " tokens, loss %.9f, written to %s\n", d.T, d.loss, out);
    free(d.hidden);
    free(d.attn);
    free(d.logits);
    acts_close(&d.acts);
    if (d.batch.be)
        batch_close(&d.batch);
    tok_ids_free(&ids);
    model_close(m);
    cli_close(&rt);
    return rc;
}

/* ---- generate ---- */

static int chat_ids(const struct model *m, const char *prompt, const char *file, struct tok_ids *ids, struct err *e)
{
    struct str user = STR_INIT, text = STR_INIT;
    int rc = 0;
    if (file)
        rc = text_read(file, &user, e);
    else
        str_puts(&user, prompt);
    struct chat_msg msg = {"user", str_c(&user)};
    if (rc == 0)
        rc = chat_render(chat_detect(m->cfg.chat_template ? m->cfg.chat_template : tok_chat_template(m->tok)), &msg, 1, true, &text, e);
    if (rc == 0)
        rc = tok_encode(m->tok, str_c(&text), text.len, true, ids, e);
    str_free(&user);
    str_free(&text);
    return rc;
}

static void gen_progress(void *ctx, int32_t done, int32_t n, int64_t tokens)
{
    UNUSED(done);
    UNUSED(n);
    prog_update(ctx, tokens, NULL);
}

static int print_generated(const struct model *m, const int32_t *ids, int32_t n, bool json, struct err *e)
{
    struct str text = STR_INIT, s = STR_INIT;
    int rc = m->tok ? tok_decode(m->tok, ids, (size_t)n, true, &text, e) : 0;
    if (rc == 0 && json) {
        struct jw w;
        jw_init(&w, &s, false);
        jw_obj(&w);
        jw_key(&w, "ids");
        jw_arr(&w);
        for (int32_t i = 0; i < n; i++)
            jw_i64(&w, ids[i]);
        jw_end_arr(&w);
        jw_key(&w, "text");
        if (m->tok)
            jw_strn(&w, str_c(&text), text.len);
        else
            jw_null(&w);
        jw_end_obj(&w);
        str_putc(&s, '\n');
    } else if (rc == 0 && m->tok) {
        str_add(&s, str_c(&text), text.len);
        str_putc(&s, '\n');
    } else if (rc == 0) {
        for (int32_t i = 0; i < n; i++)
            str_printf(&s, "%s%d", i ? " " : "", (int)ids[i]);
        str_putc(&s, '\n');
    }
    if (rc == 0)
        print_str(&s);
    str_free(&s);
    str_free(&text);
    return rc;
}

/* The continuation of ids, printed. */
static int generate(struct model *m, const struct tok_ids *ids, int64_t max_new, bool ignore_eos, bool json, struct err *e)
{
    struct prog prog;
    const int32_t *p = ids->v;
    int32_t n = (int32_t)ids->n, n_out = 0, *out = ids->n ? calloc((size_t)max_new, sizeof *out) : NULL;
    if (!ids->n)
        return ERR(e, E_INPUT, "the prompt has no tokens");
    if (!out)
        return err_nomem(e, (size_t)max_new * sizeof *out, "the continuation");
    prog_start(&prog, "generate", "tokens", max_new);
    struct gen_opts o = {.batch = 1,
                         .max_new = max_new,
                         .stop = m->cfg.eos,
                         .n_stop = ignore_eos ? 0 : m->cfg.n_eos,
                         .ctx = &prog,
                         .progress = gen_progress};
    int rc = gen_greedy(m, 1, &p, &n, &o, &out, &n_out, e);
    prog_end(&prog);
    if (rc == 0)
        rc = print_generated(m, out, n_out, json, e);
    free(out);
    return rc;
}

int model_generate(int argc, char **argv, struct err *e)
{
    struct common c = COMMON_INIT;
    const char *pos[1], *prompt = NULL, *file = NULL, *ids_path = NULL, *tokenizer = NULL, *pretok = NULL, *backend = NULL;
    bool chat = false, ignore_eos = false, no_special = false;
    int64_t max_new = 128;
    const struct opt opts[] = {
        O_STR("prompt", &prompt, "S", "the text to continue", "Prompt"),
        O_STR("file", &file, "F", "the same from a file, - for standard input", "Prompt"),
        O_STR("ids", &ids_path, "F", "token ids (.u16, .i32, .safetensors, JSON or numbers)", "Prompt"),
        O_FLAG("chat", &chat, "the prompt is a user's message in the model's chat template", "Prompt"),
        O_FLAG("no-special", &no_special, "add nothing before the prompt (no BOS)", "Prompt"),
        O_INT("max-new", &max_new, 1, 1 << 24, "tokens at most", "Generation"),
        O_FLAG("ignore-eos", &ignore_eos, "go on after an end token", "Generation"),
        MODEL_OPTS(&tokenizer, &pretok),
        O_WORD("backend", &backend, "NAME", backend_words, "ref64, ref32, cpu or cuda in place of --device", "Model"),
        COMMON_OPTS(&c),
    };
    const struct cmd_spec spec = {.synopsis = "dashlab model generate PATH (--prompt S | --file F | --ids F) [OPTIONS]",
                                  .about = "Greedy continuation.",
                                  .examples = "  dashlab model generate SmolLM2.gguf --chat --prompt \"What is 2 + 2?\" --max-new 32\n",
                                  .opts = opts,
                                  .n_opts = ARRAY_LEN(opts),
                                  .min_pos = 1,
                                  .max_pos = 1};
    bool done;
    size_t n_pos;
    TRY(cli_parse(&spec, &c, argc, argv, pos, &n_pos, &done, e));
    if (done)
        return 0;
    if (chat && (ids_path || (prompt != NULL) == (file != NULL)))
        return ERR(e, E_USAGE, "--chat takes --prompt or --file");
    struct cli_rt rt;
    struct model *m = NULL;
    struct tok_ids ids = {0};
    TRY(cli_open(&rt, &c, backend, e));
    /* with ids a tokenizer is only needed to show the text */
    struct model_open_opts mo = {.want_tokenizer = !ids_path || tokenizer, .tokenizer = tokenizer, .pretok = pretok};
    int rc = model_open(&m, rt.be, pos[0], &mo, e);
    struct err ignored = ERR_INIT;
    if (rc == 0 && !m->tok && tok_open(&m->tok, pos[0], pretok, &ignored) != 0)
        m->tok = NULL;
    if (rc == 0)
        rc = chat ? chat_ids(m, prompt, file, &ids, e) : ids_from(m->tok, prompt, file, ids_path, !no_special, &ids, e);
    if (rc == 0)
        rc = generate(m, &ids, max_new, ignore_eos, c.json, e);
    tok_ids_free(&ids);
    model_close(m);
    cli_close(&rt);
    return rc;
}
