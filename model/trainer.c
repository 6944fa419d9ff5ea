/* The training loop. */
#include "model/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/jwrite.h"
#include "core/log.h"
#include "core/prov.h"
#include "kernels/ops.h"
#include "model/st.h"

struct loop {
    struct backend *be;
    struct param **params; /* trainable ones */
    size_t n;
    const struct shard *data;
    const struct train_opts *o;
    const struct train_loss *loss;
    struct train_result *res;
    struct row_order order;
    struct view norm; /* f64 [1] */
    int64_t *rows;    /* of one step */
    struct str metrics;
    double best, head_sum, tail_sum;
    int64_t step, tokens;
    double flops_before; /* of earlier processes, less the counter when this one began */
    bool have_ckpt;
};

static double flops_so_far(const struct loop *t)
{
    return t->flops_before + t->be->flops;
}

/* ---- checkpoints: weights, moments, counters ---- */

enum part { PART_W, PART_M, PART_V, PARTS };
static const char *const part_prefix[PARTS] = {"w.", "m.", "v."};

static struct view param_part(const struct param *p, enum part part)
{
    return part == PART_W ? p->master : part == PART_M ? p->m : p->v;
}

static int put_part(struct loop *t, struct st_out *w, const struct param *p, enum part part, struct err *e)
{
    char name[320];
    struct view v = param_part(p, part);
    snprintf(name, sizeof name, "%s%s", part_prefix[part], p->name);
    void *host = malloc((size_t)v.n * dtype_size(v.dt));
    if (!host)
        return err_nomem(e, (size_t)v.n * dtype_size(v.dt), "a checkpoint tensor");
    be_get(t->be, host, v);
    int rc = be_sync(t->be, e) || st_out_raw(w, name, host, (size_t)v.n * dtype_size(v.dt), e);
    free(host);
    return rc ? -1 : 0;
}

static int meta_f64(struct st_out *w, const char *key, double v, struct err *e)
{
    char buf[40];
    snprintf(buf, sizeof buf, "%.17g", v);
    return st_out_meta(w, key, buf, e);
}

static int save_state(struct loop *t, struct err *e)
{
    char path[1024];
    struct st_out *w = NULL;
    const struct train_result *r = t->res;
    if (t->o->metrics_path)
        TRY(file_write(t->o->metrics_path, str_c(&t->metrics), t->metrics.len, e));
    TRY(mkdir_p(t->o->dir, e));
    TRY(st_out_open(&w, path_join(path, t->o->dir, "last.safetensors"), e));
    int rc = meta_f64(w, "step", (double)t->step, e) || meta_f64(w, "tokens", (double)t->tokens, e) || meta_f64(w, "best", t->best, e) || meta_f64(w, "head", t->head_sum, e) ||
             meta_f64(w, "tail", t->tail_sum, e) || meta_f64(w, "flops", flops_so_far(t), e);
    for (int i = 0; rc == 0 && i < t->loss->n_keep; i++) {
        char key[16];
        snprintf(key, sizeof key, "keep%d", i);
        rc = meta_f64(w, key, t->loss->keep[i], e);
    }
    for (int i = 0; rc == 0 && i < 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "eval%d", i);
        rc = meta_f64(w, key, r->eval_first[i], e);
    }
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++) {
            char name[320];
            int64_t shape[1] = {t->params[i]->master.n};
            snprintf(name, sizeof name, "%s%s", part_prefix[p], t->params[i]->name);
            rc = st_out_declare(w, name, t->be->stat == DT_F64 ? ST_F64 : ST_F32, 1, shape, e);
        }
    if (rc == 0)
        rc = st_out_begin(w, e);
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++)
            rc = put_part(t, w, t->params[i], p, e);
    if (rc != 0) {
        st_out_abort(w);
        return -1;
    }
    TRY(st_out_commit(w, e));
    t->have_ckpt = true;
    return 0;
}

static double meta_get(const struct st_file *f, const char *key)
{
    const char *s = st_meta(f, key);
    double v = 0;
    if (s && parse_f64(s, &v))
        return v;
    return s && (!strcmp(s, "inf")) ? INFINITY : 0;
}

/* Keeps the header and the lines of steps up to t->step. */
static int load_metrics(struct loop *t, struct err *e)
{
    struct str all = STR_INIT;
    if (!t->o->metrics_path || !file_exists(t->o->metrics_path))
        return 0;
    TRY(file_read(t->o->metrics_path, (size_t)256 << 20, &all, e));
    for (const char *p = str_c(&all); *p;) {
        size_t n = strcspn(p, "\n");
        if (p[n] && (p == str_c(&all) || strtoll(p, NULL, 10) <= t->step))
            str_add(&t->metrics, p, n + 1);
        p += n + (p[n] == '\n');
    }
    str_free(&all);
    return 0;
}

static int load_state(struct loop *t, struct err *e)
{
    char path[1024];
    struct st_file f;
    if (!t->o->dir || !file_exists(path_join(path, t->o->dir, "last.safetensors")))
        return 0;
    TRY(st_open(&f, path, e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++) {
            char name[320];
            struct view v = param_part(t->params[i], p);
            snprintf(name, sizeof name, "%s%s", part_prefix[p], t->params[i]->name);
            const struct st_tensor *s = st_find(&f, name);
            if (!s || s->bytes != (size_t)v.n * dtype_size(v.dt)) {
                rc = ERR(e, E_INPUT, "checkpoint '%s': tensor '%s' is %s; remove the run's folder to start again", path, name, s ? "of another size" : "missing");
                break;
            }
            void *host = malloc(s->bytes);
            if (!host) {
                rc = err_nomem(e, s->bytes, "a checkpoint tensor");
                break;
            }
            memcpy(host, s->data, s->bytes);
            be_put(t->be, v, host);
            rc = be_sync(t->be, e);
            free(host);
        }
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        if (t->params[i]->w.p != t->params[i]->master.p)
            be_cast(t->be, &(struct op_cast){.dst = t->params[i]->w, .src = t->params[i]->master, .n = t->params[i]->w.n});
    t->step = (int64_t)meta_get(&f, "step");
    t->tokens = (int64_t)meta_get(&f, "tokens");
    t->best = meta_get(&f, "best");
    t->head_sum = meta_get(&f, "head");
    t->tail_sum = meta_get(&f, "tail");
    for (int i = 0; i < 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "eval%d", i);
        t->res->eval_first[i] = meta_get(&f, key);
    }
    for (int i = 0; i < t->loss->n_keep; i++) {
        char key[16];
        snprintf(key, sizeof key, "keep%d", i);
        t->loss->keep[i] = meta_get(&f, key);
    }
    t->flops_before = meta_get(&f, "flops") - t->be->flops;
    t->have_ckpt = true;
    st_close(&f);
    return rc != 0 ? -1 : load_metrics(t, e);
}

/* ---- one step ---- */

static double learning_rate(const struct train_opts *o, int64_t step, int group)
{
    double lr = o->lr[group];
    if (step < o->warmup)
        return lr * (double)(step + 1) / (double)o->warmup;
    double span = (double)(o->steps - o->warmup), f = span > 1 ? (double)(step - o->warmup) / span : 0;
    switch (o->schedule) {
    case SCHED_CONST:
        return lr;
    case SCHED_COSINE:
        return lr * (o->lr_end + (1 - o->lr_end) * 0.5 * (1 + cos(3.14159265358979323846 * f)));
    case SCHED_LINEAR:
        return lr * (1 + (o->lr_end - 1) * f);
    }
    return lr;
}

/* E_NUMERIC naming the first parameter whose gradient is not finite. */
static int not_finite(struct loop *t, const char *what, struct err *e)
{
    for (size_t i = 0; i < t->n; i++) {
        double s = 0;
        be_sumsq(t->be, &(struct op_sumsq){.out = t->norm, .x = t->params[i]->g, .n = t->params[i]->g.n});
        be_get(t->be, &s, t->norm);
        if (!finite_f64(s))
            return ERR(e, E_NUMERIC, "%s: step %" PRId64 " of %" PRId64 ": %s is not finite; first bad gradient: tensor '%s'; %s", t->o->stage, t->step + 1, t->o->steps, what,
                       t->params[i]->name, t->have_ckpt ? "the last good checkpoint is kept; lower the learning rate" : "lower the learning rate");
    }
    return ERR(e, E_NUMERIC, "%s: step %" PRId64 " of %" PRId64 ": %s is not finite, while every gradient is: the loss itself overflows", t->o->stage, t->step + 1, t->o->steps, what);
}

static int forward_backward(struct loop *t, double *loss, struct err *e)
{
    const struct train_opts *o = t->o;
    double weight = 0, sum = 0;
    for (int64_t i = 0; i < o->batch; i++) {
        t->rows[i] = order_row(&t->order, t->step * o->batch + i);
        weight += t->loss->weight(t->loss->ctx, t->rows[i]);
        t->tokens += t->data->len[t->rows[i]];
    }
    for (size_t i = 0; i < t->n; i++)
        be_zero(t->be, t->params[i]->g);
    for (int64_t i = 0; i < o->batch; i += o->micro) {
        double part = 0;
        TRY(t->loss->micro(t->loss->ctx, t->rows + i, (int)MIN(o->micro, o->batch - i), weight > 0 ? 1 / weight : 0, &part, e));
        sum += part;
    }
    TRY(be_sync(t->be, e));
    *loss = weight > 0 ? sum / weight : 0;
    return finite_f64(*loss) ? 0 : not_finite(t, "the loss", e);
}

static int update(struct loop *t, double *norm, struct err *e)
{
    const struct train_opts *o = t->o;
    double sq = 0;
    for (size_t i = 0; i < t->n; i++)
        be_sumsq(t->be, &(struct op_sumsq){.out = t->norm, .x = t->params[i]->g, .n = t->params[i]->g.n, .accumulate = i > 0});
    be_get(t->be, &sq, t->norm);
    TRY(be_sync(t->be, e));
    if (!finite_f64(sq))
        return not_finite(t, "the gradient", e);
    *norm = sqrt(sq);
    double scale = o->clip > 0 && *norm > o->clip ? o->clip / *norm : 1, s1 = (double)(t->step + 1);
    for (size_t i = 0; i < t->n; i++) {
        struct param *p = t->params[i];
        be_adamw(t->be, &(struct op_adamw){.w = p->master, .w_act = p->w.p != p->master.p ? p->w : NO_VIEW, .m = p->m, .v = p->v, .g = p->g, .n = p->master.n,
                                           .lr = learning_rate(o, t->step, p->group), .b1 = o->b1, .b2 = o->b2, .eps = o->eps, .wd = p->decay ? o->wd : 0,
                                           .bc1 = 1 - pow(o->b1, s1), .bc2 = 1 - pow(o->b2, s1), .gscale = scale});
    }
    return be_sync(t->be, e);
}

/* ---- the loop ---- */

static int evaluate(struct loop *t, double v[4], struct err *e)
{
    for (int i = 0; i < 4; i++)
        v[i] = 0;
    if (t->loss->eval)
        TRY(t->loss->eval(t->loss->ctx, v, e));
    for (int i = 0; i < t->loss->n_eval; i++)
        if (!finite_f64(v[i]))
            return ERR(e, E_NUMERIC, "%s: step %" PRId64 ": held-out %s is not finite", t->o->stage, t->step, t->loss->eval_names[i]);
    return 0;
}

static void log_line(struct loop *t, double loss, double norm, const double *ev)
{
    if (t->metrics.len == 0) {
        str_puts(&t->metrics, "step\ttokens\tloss\tgrad_norm\tlr_rest\tlr_mixer");
        for (int i = 0; i < t->loss->n_eval; i++)
            str_printf(&t->metrics, "\theldout_%s", t->loss->eval_names[i]);
        str_puts(&t->metrics, "\n");
    }
    str_printf(&t->metrics, "%" PRId64 "\t%" PRId64 "\t%.9g\t%.6g\t%.6g\t%.6g", t->step, t->tokens, loss, norm, learning_rate(t->o, t->step - 1, 0), learning_rate(t->o, t->step - 1, 1));
    for (int i = 0; i < t->loss->n_eval; i++) {
        if (ev)
            str_printf(&t->metrics, "\t%.9g", ev[i]);
        else
            str_puts(&t->metrics, "\t-");
    }
    str_puts(&t->metrics, "\n");
}

static int one_step(struct loop *t, struct prog *bar, struct err *e)
{
    const struct train_opts *o = t->o;
    double loss = 0, norm = 0, ev[4];
    TRY(forward_backward(t, &loss, e));
    TRY(update(t, &norm, e));
    t->step++;
    int64_t tenth = MAX(o->steps / 10, 1);
    if (t->step <= tenth)
        t->head_sum += loss / (double)tenth;
    if (t->step > o->steps - tenth)
        t->tail_sum += loss / (double)tenth;
    bool last = t->step == o->steps, eval = last || (o->eval_every && t->step % o->eval_every == 0);
    if (eval) {
        TRY(evaluate(t, ev, e));
        t->best = fmin(t->best, ev[0]);
        memcpy(t->res->eval_last, ev, sizeof ev);
    }
    if (eval || t->step == 1 || (o->log_every && t->step % o->log_every == 0))
        log_line(t, loss, norm, eval ? ev : NULL);
    char extra[160];
    snprintf(extra, sizeof extra, "step %" PRId64 "/%" PRId64 "  loss %.5g  |g| %.3g", t->step, o->steps, loss, norm);
    prog_update(bar, t->tokens, extra);
    if (o->dir && (last || (o->ckpt_every && t->step % o->ckpt_every == 0)))
        TRY(save_state(t, e));
    if (!last && interrupted()) {
        if (o->dir)
            TRY(save_state(t, e));
        return ERR(e, E_INTERRUPTED, "%s: interrupted after step %" PRId64 " of %" PRId64 "; run the same command again to go on", o->stage, t->step, o->steps);
    }
    return 0;
}

/* The values of a run that was complete already: computed again, counted once. */
static int evaluate_again(struct loop *t, double v[4], struct err *e)
{
    double keep[4] = {0}, before = t->be->flops;
    for (int i = 0; i < t->loss->n_keep; i++)
        keep[i] = t->loss->keep[i];
    TRY(evaluate(t, v, e));
    for (int i = 0; i < t->loss->n_keep; i++)
        t->loss->keep[i] = keep[i];
    t->flops_before -= t->be->flops - before;
    return 0;
}

static int prepare(struct loop *t, struct params *params, struct err *e)
{
    t->params = calloc(params->n + 1, sizeof *t->params);
    t->rows = calloc((size_t)t->o->batch + 1, sizeof *t->rows);
    if (!t->params || !t->rows)
        return err_nomem(e, params->n * sizeof *t->params, "training");
    TRY(params_alloc(params, true, true, e));
    for (size_t i = 0; i < params->n; i++)
        if (params->v[i]->trainable)
            t->params[t->n++] = params->v[i];
    if (t->n == 0)
        return ERR(e, E_USAGE, "%s: nothing to train", t->o->stage);
    TRY(be_view(t->be, DT_F64, 1, &t->norm, e));
    TRY(order_init(&t->order, t->o->seed, t->o->row_lo, t->o->row_hi, e));
    return load_state(t, e);
}

int train_run(struct backend *be, struct params *params, const struct shard *data, const struct train_opts *o, const struct train_loss *loss, struct train_result *out, struct err *e)
{
    struct loop t = {.be = be, .data = data, .o = o, .loss = loss, .res = out, .best = INFINITY, .flops_before = -be->flops};
    *out = (struct train_result){0};
    if (o->steps < 1 || o->batch < 1 || o->micro < 1 || o->row_hi > data->rows)
        return ERR(e, E_USAGE, "%s: steps %" PRId64 ", batch %" PRId64 ", micro-batch %" PRId64 " must be positive and rows up to %" PRId64 " exist (%" PRId64 " do)", o->stage, o->steps, o->batch,
                   o->micro, o->row_hi, data->rows);
    int rc = prepare(&t, params, e);
    struct prog bar;
    prog_start(&bar, o->stage, "tok", (int64_t)((double)data->tokens / (double)data->rows * (double)(o->steps * o->batch)));
    if (rc == 0 && t.step == 0)
        rc = evaluate(&t, out->eval_first, e);
    if (rc == 0 && t.step == o->steps)
        rc = evaluate_again(&t, out->eval_last, e);
    while (rc == 0 && t.step < o->steps)
        rc = one_step(&t, &bar, e);
    prog_end(&bar);
    if (rc == 0 && o->metrics_path)
        rc = file_write(o->metrics_path, str_c(&t.metrics), t.metrics.len, e);
    out->steps = t.step;
    out->tokens = t.tokens;
    out->loss_first = t.head_sum;
    out->loss_last = t.tail_sum;
    out->flops = flops_so_far(&t);
    be_view_free(be, &t.norm);
    order_free(&t.order);
    str_free(&t.metrics);
    free(t.params);
    free(t.rows);
    return rc;
}
