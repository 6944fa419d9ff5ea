/* Stage 1. */
#include "dash/align.h"

#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "kernels/ops.h"

struct aligner {
    struct model *teacher;
    struct linset *lin;
    const struct shard *data;
    const struct align_opts *o;
    struct backend *be;
    struct batch batch;
    struct acts acts, s_acts;       /* teacher; student (free running) */
    struct dmem keep, tmp;          /* of one mixer alone */
    struct model *student;          /* free running: all-linear, shares the set's weights */
    struct view y, ds, w, loss;     /* [R,D] act x2, [R] stat x2 */
    struct view target;             /* free running: [L,R,D] teacher mixer outputs */
    float *host;                    /* [R] */
    int64_t R, D, L;
    bool train;
    double scale;                   /* on each token's loss */
    double sum[MCFG_MAX_LAYERS];    /* unscaled loss per layer of the current call */
    struct err hook_err;
};

/* Loss of student output y against target t at layer l; ds gets the gradient when training. */
static void compare(struct aligner *a, int64_t l, struct view y, struct view t)
{
    int64_t R = a->batch.seqs.rows;
    be_align_loss(a->be, &(struct op_align_loss){.loss = view_at(a->loss, 0, R), .ds = a->train ? view_at(a->ds, 0, R * a->D) : NO_VIEW,
                                                 .s = view_at(y, 0, R * a->D), .t = view_at(t, 0, R * a->D), .w = view_at(a->w, 0, R),
                                                 .rows = R, .dim = a->D, .squared = a->o->squared});
    if (get_f32(a->be, a->host, view_at(a->loss, 0, R), &a->hook_err) != 0)
        return;
    for (int64_t r = 0; r < R; r++)
        a->sum[l] += (double)a->host[r];
}

static void forced_hook(void *ctx, int64_t l, struct view h, struct view y)
{
    struct aligner *a = ctx;
    const struct mixer *x = &a->lin->mixer[l];
    struct mx c = mixer_ctx(a->be, &a->keep, &a->tmp, &a->batch);
    struct mixer_save sv;
    size_t k = dmem_mark(&a->keep), t = dmem_mark(&a->tmp);
    int64_t R = a->batch.seqs.rows;
    c.save = a->train;
    c.wgrad = a->train;
    mixer_fwd(&c, x, h, view_at(a->y, 0, R * a->D), &sv);
    compare(a, l, a->y, y);
    if (a->train)
        mixer_bwd(&c, x, h, view_at(a->ds, 0, R * a->D), NO_VIEW, &sv);
    dmem_release(&a->keep, k);
    dmem_release(&a->tmp, t);
}

/* ---- free running ---- */

static struct view target_of(struct aligner *a, int64_t l)
{
    return view_at(a->target, l * a->R * a->D, a->batch.seqs.rows * a->D);
}
static void keep_target(void *ctx, int64_t l, struct view h, struct view y)
{
    struct aligner *a = ctx;
    UNUSED(h);
    be_copy(a->be, target_of(a, l), view_at(y, 0, a->batch.seqs.rows * a->D));
}
/* The student's outputs replace the targets by (gradient at the output), which the backward injects. */
static void free_hook(void *ctx, int64_t l, struct view h, struct view y)
{
    struct aligner *a = ctx;
    UNUSED(h);
    compare(a, l, y, target_of(a, l));
    if (a->train)
        be_copy(a->be, target_of(a, l), view_at(a->ds, 0, a->batch.seqs.rows * a->D));
}
static bool inject(void *ctx, int64_t l, struct view dy)
{
    struct aligner *a = ctx;
    be_copy(a->be, view_at(dy, 0, a->batch.seqs.rows * a->D), target_of(a, l));
    return true;
}

static int run_rows(struct aligner *a, const int64_t *rows, int n, double scale, bool train, struct err *e)
{
    const int32_t *tok[64];
    int32_t len[64];
    struct view hidden;
    for (int i = 0; i < n; i++) {
        tok[i] = a->data->ids + rows[i] * a->data->seq;
        len[i] = a->data->len[rows[i]];
    }
    TRY(batch_set(&a->batch, n, tok, len, NULL, a->teacher->cfg.N, e));
    int64_t R = a->batch.seqs.rows;
    a->train = train;
    memset(a->sum, 0, sizeof a->sum);
    a->hook_err = (struct err)ERR_INIT;
    for (int64_t r = 0; r < R; r++)
        a->host[r] = (float)(a->o->squared ? scale : scale / (double)a->L);
    TRY(put_f32(a->be, view_at(a->w, 0, R), a->host, e));
    struct fwd_opts fo = {.ctx = a, .on_mixer = a->student ? keep_target : forced_hook};
    TRY(model_fwd(a->teacher, &a->acts, &a->batch, &fo, &hidden, e));
    if (a->student) {
        struct fwd_opts so = {.save = train, .ctx = a, .on_mixer = free_hook};
        TRY(model_fwd(a->student, &a->s_acts, &a->batch, &so, &hidden, e));
        struct bwd_opts bo = {.wgrad = true, .ctx = a, .inject = inject};
        if (train)
            TRY(model_bwd(a->student, &a->s_acts, &a->batch, NO_VIEW, &bo, e));
    }
    if (a->hook_err.code) {
        *e = a->hook_err;
        return -1;
    }
    for (int64_t l = 0; l < a->L; l++)
        if (!finite_f64(a->sum[l]))
            return ERR(e, E_NUMERIC, "layer %" PRId64 ": the output of the linear mixer or its loss is not finite", l);
    return be_sync(a->be, e);
}

static double row_weight(void *ctx, int64_t row)
{
    struct aligner *a = ctx;
    return a->data->len[row];
}

static double layer_sum(const struct aligner *a)
{
    double s = 0;
    for (int64_t l = 0; l < a->L; l++)
        s += a->sum[l];
    return a->o->squared ? s : s / (double)a->L;
}

static int micro(void *ctx, const int64_t *rows, int n, double scale, double *loss, struct err *e)
{
    struct aligner *a = ctx;
    TRY(run_rows(a, rows, n, scale, true, e));
    *loss = layer_sum(a);
    return 0;
}

static int heldout(struct aligner *a, double *per_layer, double *mean, struct err *e)
{
    double tokens = 0;
    int64_t lo = a->data->rows - a->o->heldout, step = a->o->train.micro;
    *mean = 0;
    memset(per_layer, 0, sizeof(double) * (size_t)a->L);
    for (int64_t r = lo; r < a->data->rows; r += step) {
        int64_t rows[64];
        int n = (int)MIN(MIN(step, 64), a->data->rows - r);
        for (int i = 0; i < n; i++) {
            rows[i] = r + i;
            tokens += a->data->len[r + i];
        }
        TRY(run_rows(a, rows, n, 1, false, e));
        for (int64_t l = 0; l < a->L; l++)
            per_layer[l] += a->sum[l];
        *mean += layer_sum(a);
    }
    for (int64_t l = 0; l < a->L; l++)
        per_layer[l] /= tokens > 0 ? tokens : 1;
    *mean /= tokens > 0 ? tokens : 1;
    return 0;
}

static int eval(void *ctx, double *values, struct err *e)
{
    double per_layer[MCFG_MAX_LAYERS];
    return heldout(ctx, per_layer, values, e);
}

static int open_student(struct aligner *a, struct err *e)
{
    unsigned ops[MCFG_MAX_LAYERS];
    for (int64_t l = 0; l < a->L; l++)
        ops[l] = MIX_BIT(MIX_GDN);
    struct assemble_opts as = {.ops = ops, .window = 0, .copy = false};
    TRY(model_assemble(&a->student, a->teacher, a->lin, &as, e));
    /* only the linear mixers learn; gradients and moments belong to the student's parameters, weights are shared with the set */
    for (size_t i = 0; i < a->student->params.n; i++)
        a->student->params.v[i]->trainable = params_find(&a->lin->params, a->student->params.v[i]->name) != NULL;
    struct acts_opts ao = {.rows = a->R, .seqs = (int32_t)a->o->train.micro, .train = true, .wgrad = true,
                           .recompute = a->o->recompute};
    TRY(acts_open(&a->s_acts, a->student, &ao, e));
    return be_view(a->be, a->be->act, a->L * a->R * a->D, &a->target, e);
}

static int open_aligner(struct aligner *a, struct err *e)
{
    int32_t seqs = (int32_t)a->o->train.micro;
    size_t keep = 0, tmp = 0;
    struct acts_opts ao = {.rows = a->R, .seqs = seqs};
    a->host = malloc((size_t)a->R * sizeof *a->host);
    if (!a->host)
        return err_nomem(e, (size_t)a->R * sizeof *a->host, "losses");
    for (int64_t l = 0; l < a->L; l++) {
        size_t k, t;
        TRY(mixer_plan(&a->lin->mixer[l], a->be, a->R, seqs, &k, &t, e));
        keep = MAX(keep, k);
        tmp = MAX(tmp, t);
    }
    if (batch_open(&a->batch, a->be, a->R, seqs, e) || acts_open(&a->acts, a->teacher, &ao, e) || dmem_open(&a->keep, a->be, keep, e) ||
        dmem_open(&a->tmp, a->be, tmp, e) || be_view(a->be, a->be->act, a->R * a->D, &a->y, e) ||
        be_view(a->be, a->be->act, a->R * a->D, &a->ds, e) || be_view(a->be, a->be->stat, a->R, &a->w, e) ||
        be_view(a->be, a->be->stat, a->R, &a->loss, e)) return -1;
    return a->o->free_running ? open_student(a, e) : 0;
}

static void close_aligner(struct aligner *a)
{
    if (a->batch.be)
        batch_close(&a->batch);
    if (a->acts.layer)
        acts_close(&a->acts);
    if (a->s_acts.layer)
        acts_close(&a->s_acts);
    dmem_close(&a->keep);
    dmem_close(&a->tmp);
    struct view *v[] = {&a->y, &a->ds, &a->w, &a->loss, &a->target};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(a->be, v[i]);
    if (a->student)
        model_close(a->student);
    free(a->host);
}

int align_run(struct model *teacher, struct linset *lin, const struct shard *data, const struct align_opts *o, struct align_result *out,
              struct err *e)
{
    struct aligner a = {.teacher = teacher, .lin = lin, .data = data, .o = o, .be = teacher->be, .D = teacher->cfg.d, .L = teacher->cfg.L,
                        .R = o->train.micro * data->seq};
    *out = (struct align_result){0};
    if (o->heldout < 1 || o->train.row_hi > data->rows - o->heldout)
        return ERR(e, E_USAGE, "stage 1: training rows %" PRId64 "..%" PRId64 " reach into the %" PRId64 " held-out rows (of %" PRId64 ")",
                   o->train.row_lo, o->train.row_hi, o->heldout, data->rows);
    if (o->train.micro > 64)
        return ERR(e, E_USAGE, "stage 1: micro-batch %" PRId64 " is above 64 rows", o->train.micro);
    params_set_trainable(&lin->params, -1, true);
    struct train_loss loss = {.ctx = &a, .weight = row_weight, .micro = micro, .eval = eval, .eval_names = {"align"}, .n_eval = 1};
    int rc = open_aligner(&a, e);
    if (rc == 0)
        rc = train_run(a.be, a.student ? &a.student->params : &lin->params, data, &o->train, &loss, &out->train, e);
    double mean;
    if (rc == 0)
        rc = heldout(&a, out->heldout, &mean, e);
    close_aligner(&a);
    return rc;
}
