/* The training loop. */
#include "model/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/jwrite.h"
#include "core/log.h"
#include "core/prov.h"
#include "kernels/ops.h"
#include "model/trainer_state.h"

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
    int64_t best_step, step, tokens;
    double flops, others; /* of this training, in whole FLOPs; what the backend had counted before the stretch under way */
    bool have_ckpt;
};

/* FLOPs of one stretch (a step, an evaluation), counted from nought and taken whole: then their sum is exact, and the same wherever one
 * process took over from another. */
static void count_begin(struct loop *t)
{
    t->others = t->be->flops;
    t->be->flops = 0;
}
static void count_end(struct loop *t, bool ours)
{
    t->flops += ours ? rint(t->be->flops) : 0;
    t->be->flops += t->others;
}

/* ---- checkpoints: weights, moments, counters ---- */

static int put_best(struct loop *t, struct state_out *w, struct err *e)
{
    TRY(state_out_f64(w, "step", (double)t->step, e));
    TRY(state_out_f64(w, "best", t->best, e));
    return state_out_params(w, t->params, t->n, TRAIN_W + 1, e);
}

static int save_best(struct loop *t, struct err *e)
{
    struct state_out w;
    TRY(state_out_open(&w, t->be, t->o->dir, "best", t->step, t->o->part_bytes, e));
    if (put_best(t, &w, e) != 0) {
        state_out_abort(&w);
        return -1;
    }
    return state_out_commit(&w, e);
}

static int put_state(struct loop *t, struct state_out *w, struct err *e)
{
    int rc = state_out_f64(w, "step", (double)t->step, e) || state_out_f64(w, "tokens", (double)t->tokens, e) ||
             state_out_f64(w, "best", t->best, e) || state_out_f64(w, "best_step", (double)t->best_step, e) ||
             state_out_f64(w, "head", t->head_sum, e) || state_out_f64(w, "tail", t->tail_sum, e) || state_out_f64(w, "flops", t->flops, e);
    for (int i = 0; rc == 0 && i < t->loss->n_keep; i++) {
        char key[16];
        snprintf(key, sizeof key, "keep%d", i);
        rc = state_out_f64(w, key, t->loss->keep[i], e);
    }
    for (int i = 0; rc == 0 && i < 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "eval%d", i);
        rc = state_out_f64(w, key, t->res->eval_first[i], e);
    }
    return rc == 0 ? state_out_params(w, t->params, t->n, TRAIN_PARTS, e) : -1;
}

static int save_state(struct loop *t, struct err *e)
{
    struct state_out w;
    if (t->o->metrics_path)
        TRY(file_write(t->o->metrics_path, str_c(&t->metrics), t->metrics.len, e));
    TRY(state_out_open(&w, t->be, t->o->dir, "last", t->step, t->o->part_bytes, e));
    if (put_state(t, &w, e) != 0) {
        state_out_abort(&w);
        return -1;
    }
    TRY(state_out_commit(&w, e));
    t->have_ckpt = true;
    return 0;
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
    struct state_in f;
    if (!t->o->dir || !state_there(t->o->dir, "last"))
        return 0;
    TRY(state_in_open(&f, t->o->dir, "last", e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < t->n; i++)
        for (enum train_part p = 0; rc == 0 && p < TRAIN_PARTS; p++)
            rc = state_in_take(&f, t->be, t->params[i], p, e);
    t->step = (int64_t)state_in_f64(&f, "step");
    t->tokens = (int64_t)state_in_f64(&f, "tokens");
    t->best = state_in_f64(&f, "best");
    t->best_step = (int64_t)state_in_f64(&f, "best_step");
    t->head_sum = state_in_f64(&f, "head");
    t->tail_sum = state_in_f64(&f, "tail");
    for (int i = 0; i < 4; i++) {
        char key[16];
        snprintf(key, sizeof key, "eval%d", i);
        t->res->eval_first[i] = state_in_f64(&f, key);
    }
    for (int i = 0; i < t->loss->n_keep; i++) {
        char key[16];
        snprintf(key, sizeof key, "keep%d", i);
        t->loss->keep[i] = state_in_f64(&f, key);
    }
    t->flops = state_in_f64(&f, "flops");
    t->have_ckpt = true;
    state_in_close(&f);
    return rc != 0 ? -1 : load_metrics(t, e);
}

int train_load_best(struct backend *be, struct params *params, const char *dir, struct err *e)
{
    struct state_in f;
    TRY(state_in_open(&f, dir, "best", e));
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < params->n; i++)
        if (params->v[i]->trainable)
            rc = state_in_take(&f, be, params->v[i], TRAIN_W, e);
    state_in_close(&f);
    return rc ? -1 : be_sync(be, e);
}

/* ---- one step ---- */

static double learning_rate(const struct train_opts *o, int64_t step, int group)
{
    double lr = o->lr[group];
    if (step < o->warmup)
        return lr * (double)(step + 1) / (double)o->warmup;
    int64_t from = MAX(o->warmup, (int64_t)(o->hold * (double)o->steps)); /* the fall begins */
    double span = (double)(o->steps - from), f = span > 1 ? (double)MAX(step - from, (int64_t)0) / span : 0;
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

/* The first trained parameter whose weights (else: whose gradient) are not finite, in words; "" when all are. */
static void find_culprit(struct loop *t, char out[400])
{
    for (int grads = 0; grads < 2; grads++)
        for (size_t i = 0; i < t->n; i++) {
            const struct param *p = t->params[i];
            int layer;
            double s = 0;
            struct view v = grads ? p->g : p->master;
            be_sumsq(t->be, &(struct op_sumsq){.out = t->norm, .x = v, .n = v.n});
            be_get(t->be, &s, t->norm);
            if (finite_f64(s))
                continue;
            const char *what = grads ? "gradient" : "weights";
            if (sscanf(p->name, "model.layers.%d.", &layer) == 1)
                snprintf(out, 400, "first bad %s: layer %d, tensor '%s'", what, layer, p->name);
            else
                snprintf(out, 400, "first bad %s: tensor '%s'", what, p->name);
            return;
        }
    out[0] = 0;
}

/* E_NUMERIC: stage, step, what was seen, where it comes from, what is kept. */
static int not_finite(struct loop *t, int64_t step, const char *seen, struct err *e)
{
    char culprit[400], msg[600];
    snprintf(msg, sizeof msg, "%s", seen);
    find_culprit(t, culprit);
    return ERR(e, E_NUMERIC, "%s: step %" PRId64 " of %" PRId64 ": %s; %s; %slower the learning rate", t->o->stage, step, t->o->steps, msg,
               *culprit ? culprit : "every trained weight and gradient is finite, so it is the loss itself or a frozen weight",
               t->have_ckpt ? "the last good checkpoint is kept; " : "");
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
        if (t->loss->micro(t->loss->ctx, t->rows + i, (int)MIN(o->micro, o->batch - i), weight > 0 ? 1 / weight : 0, &part, e) != 0)
            return e->code == E_NUMERIC ? not_finite(t, t->step + 1, e->msg, e) : -1;
        sum += part;
    }
    TRY(be_sync(t->be, e));
    *loss = weight > 0 ? sum / weight : 0;
    return finite_f64(*loss) ? 0 : not_finite(t, t->step + 1, "the loss is not finite", e);
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
        return not_finite(t, t->step + 1, "the gradient is not finite", e);
    *norm = sqrt(sq);
    double scale = o->clip > 0 && *norm > o->clip ? o->clip / *norm : 1, s1 = (double)(t->step + 1);
    for (size_t i = 0; i < t->n; i++) {
        struct param *p = t->params[i];
        be_adamw(t->be, &(struct op_adamw){.w = p->master, .w_act = p->w.p != p->master.p ? p->w : NO_VIEW, .m = p->m, .v = p->v, .g = p->g,
                                           .n = p->master.n, .lr = learning_rate(o, t->step, p->group), .b1 = o->b1, .b2 = o->b2,
                                           .eps = o->eps, .wd = p->decay ? o->wd : 0, .bc1 = 1 - pow(o->b1, s1), .bc2 = 1 - pow(o->b2, s1),
                                           .gscale = scale});
    }
    return be_sync(t->be, e);
}

/* ---- the loop ---- */

static int evaluate(struct loop *t, double v[4], struct err *e)
{
    for (int i = 0; i < 4; i++)
        v[i] = 0;
    if (t->loss->eval && t->loss->eval(t->loss->ctx, v, e) != 0)
        return e->code == E_NUMERIC ? not_finite(t, t->step, e->msg, e) : -1;
    for (int i = 0; i < t->loss->n_eval; i++) {
        char seen[96];
        snprintf(seen, sizeof seen, "held-out %s is not finite", t->loss->eval_names[i]);
        if (!finite_f64(v[i]))
            return not_finite(t, t->step, seen, e);
    }
    return 0;
}

/* ours false: the values of a training that was complete already, computed again and not counted again. */
static int evaluate_counted(struct loop *t, double v[4], bool ours, struct err *e)
{
    double keep[4] = {0};
    for (int i = 0; i < t->loss->n_keep; i++)
        keep[i] = t->loss->keep[i];
    count_begin(t);
    int rc = evaluate(t, v, e);
    count_end(t, ours);
    for (int i = 0; !ours && i < t->loss->n_keep; i++)
        t->loss->keep[i] = keep[i];
    return rc;
}

static void log_line(struct loop *t, double loss, double norm, const double *ev)
{
    if (t->metrics.len == 0) {
        str_puts(&t->metrics, "step\ttokens\tloss\tgrad_norm\tlr_rest\tlr_mixer");
        for (int i = 0; i < t->loss->n_eval; i++)
            str_printf(&t->metrics, "\theldout_%s", t->loss->eval_names[i]);
        str_puts(&t->metrics, "\n");
    }
    str_printf(&t->metrics, "%" PRId64 "\t%" PRId64 "\t%.9g\t%.6g\t%.6g\t%.6g", t->step, t->tokens, loss, norm,
               learning_rate(t->o, t->step - 1, 0), learning_rate(t->o, t->step - 1, 1));
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
    count_begin(t);
    int rc = forward_backward(t, &loss, e) || update(t, &norm, e);
    count_end(t, true);
    if (rc != 0)
        return -1;
    t->step++;
    int64_t tenth = MAX(o->steps / 10, 1);
    if (t->step <= tenth)
        t->head_sum += loss / (double)tenth;
    if (t->step > o->steps - tenth)
        t->tail_sum += loss / (double)tenth;
    bool last = t->step == o->steps, eval = last || (o->eval_every && t->step % o->eval_every == 0);
    if (eval) {
        TRY(evaluate_counted(t, ev, true, e));
        memcpy(t->res->eval_last, ev, sizeof ev);
        if (t->loss->eval && ev[0] < t->best) {
            t->best = ev[0];
            t->best_step = t->step;
            if (o->keep_best && o->dir)
                TRY(save_best(t, e));
        }
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
        return ERR(e, E_INTERRUPTED, "%s: interrupted after step %" PRId64 " of %" PRId64 "; run the same command again to go on", o->stage,
                   t->step, o->steps);
    }
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

int train_run(struct backend *be, struct params *params, const struct shard *data, const struct train_opts *o,
              const struct train_loss *loss, struct train_result *out, struct err *e)
{
    struct loop t = {.be = be, .data = data, .o = o, .loss = loss, .res = out, .best = INFINITY};
    *out = (struct train_result){0};
    if (o->steps < 1 || o->batch < 1 || o->micro < 1 || o->row_hi > data->rows)
        return ERR(e, E_USAGE,
                   "%s: steps %" PRId64 ", batch %" PRId64 ", micro-batch %" PRId64 " must be positive and rows up to %" PRId64 " exist "
                   "(%" PRId64 " do)", o->stage, o->steps, o->batch, o->micro, o->row_hi, data->rows);
    int rc = prepare(&t, params, e);
    struct prog bar;
    prog_start(&bar, o->stage, "tok", (int64_t)((double)data->tokens / (double)data->rows * (double)(o->steps * o->batch)));
    if (rc == 0 && t.step == 0)
        rc = evaluate_counted(&t, out->eval_first, true, e);
    if (rc == 0 && t.step == o->steps)
        rc = evaluate_counted(&t, out->eval_last, false, e);
    while (rc == 0 && t.step < o->steps)
        rc = one_step(&t, &bar, e);
    prog_end(&bar);
    if (rc == 0 && o->metrics_path)
        rc = file_write(o->metrics_path, str_c(&t.metrics), t.metrics.len, e);
    out->steps = t.step;
    out->tokens = t.tokens;
    out->best = t.best;
    out->best_step = t.best_step;
    out->loss_first = t.head_sum;
    out->loss_last = t.tail_sum;
    out->flops = t.flops;
    be_view_free(be, &t.norm);
    order_free(&t.order);
    str_free(&t.metrics);
    free(t.params);
    free(t.rows);
    return rc;
}
