/* Stage 3. */
#include "dash/distill.h"

#include "kernels/ops.h"

struct distiller {
    struct model *student;
    struct stream st;
    struct acts acts;
    const struct shard *data;
    const struct distill_opts *o;
};

static double row_weight(void *ctx, int64_t row)
{
    struct distiller *d = ctx;
    return stream_weight(d->data, row, d->o->positions);
}

static int micro(void *ctx, const int64_t *rows, int n, double scale, double *loss, struct err *e)
{
    struct distiller *d = ctx;
    struct kl_sums k = {0};
    struct view hidden;
    struct fwd_opts fo = {.save = true};
    struct bwd_opts bo = {.wgrad = true};
    TRY(stream_set(&d->st, rows, n, e));
    double f0 = d->student->be->flops;
    TRY(model_fwd(d->student, &d->acts, &d->st.batch, &fo, &hidden, e));
    d->st.flops_forward += d->student->be->flops - f0;
    TRY(stream_kl(&d->st, d->student, hidden, d->o->positions, true, true, scale, &k, e));
    TRY(model_bwd(d->student, &d->acts, &d->st.batch, view_at(d->st.dh, 0, d->st.batch.seqs.rows * d->student->cfg.d), &bo, e));
    *loss = d->o->positions == POS_ALL ? k.all : k.answers;
    return 0;
}

static int heldout(struct distiller *d, struct kl_sums *out, struct err *e)
{
    *out = (struct kl_sums){0};
    return stream_eval(&d->st, d->student, &d->acts, d->data->rows - d->o->heldout, d->data->rows, d->o->train.micro, out, e);
}

static int eval(void *ctx, double *values, struct err *e)
{
    struct kl_sums k;
    TRY(heldout(ctx, &k, e));
    values[0] = k.n_all > 0 ? k.all / k.n_all : 0;
    values[1] = k.n_answers > 0 ? k.answers / k.n_answers : 0;
    return 0;
}

int distill_run(struct model *student, struct model *teacher, const struct shard *data, const struct hcache *cache,
                const struct distill_opts *o, struct distill_result *out, struct err *e)
{
    struct distiller d = {.student = student, .data = data, .o = o};
    *out = (struct distill_result){0};
    if (o->train.micro < 1 || o->train.micro > 64)
        return ERR(e, E_USAGE, "stage 3: micro-batch %" PRId64 " is outside 1..64 rows", o->train.micro);
    if (o->heldout < 1 || o->train.row_hi > data->rows - o->heldout)
        return ERR(e, E_USAGE, "stage 3: training rows %" PRId64 "..%" PRId64 " reach into the %" PRId64 " held-out rows (of %" PRId64 ")",
                   o->train.row_lo, o->train.row_hi, o->heldout, data->rows);
    bool train = o->train.steps > 0;
    params_set_trainable(&student->params, -1, train);
    struct acts_opts ao = {.rows = o->train.micro * data->seq, .seqs = (int32_t)o->train.micro, .train = train, .wgrad = train,
                           .recompute = o->recompute};
    struct train_loss loss = {.ctx = &d, .weight = row_weight, .micro = micro, .eval = eval, .eval_names = {"kl", "kl_answers"},
                              .n_eval = 2, .keep = &d.st.flops_forward, .n_keep = 1};
    int rc = stream_open(&d.st, student->be, data, teacher, cache, o->train.micro, o->tau, e) || acts_open(&d.acts, student, &ao, e);
    if (rc == 0 && train) {
        rc = train_run(student->be, &student->params, data, &o->train, &loss, &out->train, e);
        out->before = (struct kl_sums){out->train.eval_first[0], out->train.eval_first[1], 1, 1};
        out->after = (struct kl_sums){out->train.eval_last[0], out->train.eval_last[1], 1, 1};
    } else if (rc == 0) {
        rc = heldout(&d, &out->before, e);
        out->after = out->before;
    }
    out->flops_forward = d.st.flops_forward;
    out->flops_backward = train ? out->train.flops - d.st.flops_forward : 0;
    stream_close(&d.st);
    if (d.acts.layer)
        acts_close(&d.acts);
    return rc ? -1 : 0;
}
