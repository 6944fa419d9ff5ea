/* Training from scratch. */
#include "dash/pretrain.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"

enum { MAX_MICRO = 64 };

struct pretrainer {
    struct model *m;
    struct backend *be;
    const struct shard *data;
    const struct pretrain_opts *o;
    bool *text; /* [rows of the shard] no answers in it */
    struct batch batch;
    struct acts acts;
    struct view dh, lp, best, target, wt; /* [R,D] act, [R] stat, i32, i32, stat */
    float *w, *h_lp;                      /* [R] weights of positions, log-probabilities */
    int32_t *h_target, *h_best;
    int64_t R;
};

static bool is_answer(const struct shard *s, int64_t row, int64_t t)
{
    return (s->mask[row * s->seq + t] & TOK_ANSWER) != 0;
}

double pretrain_weight(const struct shard *s, int64_t row, int64_t t, bool text, double w_prompt)
{
    if (t + 1 >= s->len[row])
        return 0;
    return text || is_answer(s, row, t + 1) || is_answer(s, row, t) ? 1 : w_prompt;
}

static double row_weight(void *ctx, int64_t row)
{
    const struct pretrainer *p = ctx;
    double sum = 0;
    for (int64_t t = 0; t + 1 < p->data->len[row]; t++)
        sum += pretrain_weight(p->data, row, t, p->text[row], p->o->w_prompt);
    return sum;
}

/* Batch, targets and weights of n rows; weights of positions are also kept in w, unscaled. */
static int set_rows(struct pretrainer *p, const int64_t *rows, int n, double scale, struct err *e)
{
    const int32_t *tok[MAX_MICRO];
    int32_t len[MAX_MICRO];
    const struct shard *s = p->data;
    if (n < 1 || n > MAX_MICRO)
        BUG("%d rows in a micro-batch (1..%d)", n, MAX_MICRO);
    for (int i = 0; i < n; i++) {
        tok[i] = s->ids + rows[i] * s->seq;
        len[i] = s->len[rows[i]];
    }
    TRY(batch_set(&p->batch, n, tok, len, NULL, p->m->cfg.N, e));
    int64_t R = p->batch.seqs.rows;
    for (int i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++) {
            int64_t r = p->batch.seqs.q_off[i] + t;
            p->h_target[r] = t + 1 < len[i] ? tok[i][t + 1] : -1;
            p->w[r] = (float)pretrain_weight(s, rows[i], t, p->text[rows[i]], p->o->w_prompt);
            p->h_lp[r] = (float)((double)p->w[r] * scale);
        }
    be_put(p->be, view_at(p->target, 0, R), p->h_target);
    return put_f32(p->be, view_at(p->wt, 0, R), p->h_lp, e);
}

static struct op_head_ce head_of(const struct pretrainer *p, struct view hidden)
{
    int64_t R = p->batch.seqs.rows, D = p->m->cfg.d;
    return (struct op_head_ce){.lp = view_at(p->lp, 0, R),
                               .h = view_at(hidden, 0, R * D),
                               .w = model_head(p->m)->w,
                               .target = view_at(p->target, 0, R),
                               .wt = view_at(p->wt, 0, R),
                               .rows = R,
                               .dim = D,
                               .vocab = p->m->cfg.N};
}

static int micro(void *ctx, const int64_t *rows, int n, double scale, double *loss, struct err *e)
{
    struct pretrainer *p = ctx;
    struct fwd_opts fo = {.save = true};
    struct bwd_opts bo = {.wgrad = true};
    struct view hidden;
    TRY(set_rows(p, rows, n, scale, e));
    TRY(model_fwd(p->m, &p->acts, &p->batch, &fo, &hidden, e));
    struct op_head_ce op = head_of(p, hidden);
    int64_t R = op.rows;
    op.dh = view_at(p->dh, 0, R * op.dim);
    op.dw = model_head(p->m)->g;
    be_head_ce(p->be, &op);
    TRY(model_bwd(p->m, &p->acts, &p->batch, op.dh, &bo, e));
    TRY(get_f32(p->be, p->h_lp, op.lp, e));
    *loss = 0;
    for (int64_t r = 0; r < R; r++)
        *loss -= (double)p->w[r] * (double)p->h_lp[r];
    return 0;
}

/* Held-out rows: {weighted mean, mean over answer tokens, share of answer tokens that are the arg max}. */
static int eval(void *ctx, double *values, struct err *e)
{
    struct pretrainer *p = ctx;
    const struct shard *s = p->data;
    double sum = 0, weight = 0, answers = 0, n_answers = 0, right = 0;
    int64_t step = p->o->train.micro;
    for (int64_t r = s->rows - p->o->heldout; r < s->rows; r += step) {
        int64_t rows[MAX_MICRO];
        struct view hidden;
        int n = (int)MIN(step, s->rows - r);
        for (int i = 0; i < n; i++)
            rows[i] = r + i;
        TRY(set_rows(p, rows, n, 1, e));
        TRY(model_fwd(p->m, &p->acts, &p->batch, NULL, &hidden, e));
        struct op_head_ce op = head_of(p, hidden);
        op.best = view_at(p->best, 0, op.rows);
        be_head_ce(p->be, &op);
        be_get(p->be, p->h_best, op.best);
        TRY(get_f32(p->be, p->h_lp, op.lp, e));
        for (int i = 0; i < n; i++)
            for (int32_t t = 0; t + 1 < s->len[rows[i]]; t++) {
                int64_t at = p->batch.seqs.q_off[i] + t;
                sum -= (double)p->w[at] * (double)p->h_lp[at];
                weight += (double)p->w[at];
                if (!is_answer(s, rows[i], t + 1))
                    continue;
                answers -= (double)p->h_lp[at];
                n_answers += 1;
                right += p->h_best[at] == p->h_target[at];
            }
    }
    values[0] = weight > 0 ? sum / weight : 0;
    values[1] = n_answers > 0 ? answers / n_answers : 0;
    values[2] = n_answers > 0 ? right / n_answers : 0;
    return be_sync(p->be, e);
}

/* Rows without answers are prose. */
static void find_text(struct pretrainer *p)
{
    for (int64_t r = 0; r < p->data->rows; r++) {
        p->text[r] = true;
        for (int64_t t = 0; t < p->data->len[r] && p->text[r]; t++)
            p->text[r] = !is_answer(p->data, r, t);
    }
}

static int open_pretrainer(struct pretrainer *p, struct err *e)
{
    int32_t seqs = (int32_t)p->o->train.micro;
    int64_t R = p->R, D = p->m->cfg.d;
    size_t host = (size_t)R * 16 + (size_t)p->data->rows;
    struct acts_opts ao = {.rows = R, .seqs = seqs, .train = true, .wgrad = true, .recompute = p->o->recompute};
    p->text = malloc((size_t)p->data->rows * sizeof *p->text);
    p->w = malloc((size_t)R * sizeof *p->w);
    p->h_lp = malloc((size_t)R * sizeof *p->h_lp);
    p->h_target = malloc((size_t)R * sizeof *p->h_target);
    p->h_best = malloc((size_t)R * sizeof *p->h_best);
    if (!p->text || !p->w || !p->h_lp || !p->h_target || !p->h_best)
        return err_nomem(e, host, "targets of a step");
    find_text(p);
    for (size_t i = 0; i < p->m->params.n; i++) {
        struct param *x = p->m->params.v[i];
        x->trainable = true;
        x->decay = x->decay && x->ndim > 1;
    }
    bool failed = batch_open(&p->batch, p->be, R, seqs, e) || acts_open(&p->acts, p->m, &ao, e) ||
                  be_view(p->be, p->be->act, R * D, &p->dh, e) || be_view(p->be, p->be->stat, R, &p->lp, e) ||
                  be_view(p->be, p->be->stat, R, &p->wt, e) || be_view(p->be, DT_I32, R, &p->target, e) ||
                  be_view(p->be, DT_I32, R, &p->best, e);
    return failed ? -1 : 0;
}

static void close_pretrainer(struct pretrainer *p)
{
    struct view *v[] = {&p->dh, &p->lp, &p->best, &p->target, &p->wt};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(p->be, v[i]);
    if (p->acts.layer)
        acts_close(&p->acts);
    if (p->batch.be)
        batch_close(&p->batch);
    free(p->text);
    free(p->w);
    free(p->h_lp);
    free(p->h_target);
    free(p->h_best);
}

int pretrain_run(struct model *m, const struct shard *data, const struct pretrain_opts *o, struct pretrain_result *out, struct err *e)
{
    struct pretrainer p = {.m = m, .be = m->be, .data = data, .o = o, .R = o->train.micro * data->seq};
    *out = (struct pretrain_result){0};
    if (o->train.micro < 1 || o->train.micro > MAX_MICRO)
        return ERR(e, E_USAGE, "train: micro-batch %" PRId64 " is outside 1..%d rows", o->train.micro, MAX_MICRO);
    if (o->heldout < 1 || o->train.row_hi > data->rows - o->heldout)
        return ERR(e, E_USAGE, "train: training rows %" PRId64 "..%" PRId64 " reach into the %" PRId64 " held-out rows (of %" PRId64 ")",
                   o->train.row_lo, o->train.row_hi, o->heldout, data->rows);
    if (data->vocab > m->cfg.N)
        return ERR(e, E_INPUT, "'%s' was made for a vocabulary of %" PRId64 ", the model has %" PRId64, data->dir, data->vocab, m->cfg.N);
    struct train_loss loss = {
        .ctx = &p, .weight = row_weight, .micro = micro, .eval = eval, .eval_names = {"ce", "ce_answers", "acc_answers"}, .n_eval = 3};
    int rc = open_pretrainer(&p, e);
    if (rc == 0)
        rc = train_run(m->be, &m->params, data, &o->train, &loss, &out->train, e);
    close_pretrainer(&p);
    return rc ? -1 : 0;
}
