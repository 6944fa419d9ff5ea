/* Training steps and prefill, timed. */
#include "cli/bench_step.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/prog.h"
#include "core/rng.h"
#include "dash/stream.h"
#include "kernels/host.h"

/* ---- time by op ---- */

/* A table of ops that calls the backend's own and adds up time. It must be the first member: ops find the rest through be->ops. */
struct op_timer {
    struct backend_ops ops;
    const struct backend_ops *real;
    struct bench_part part[OP_COUNT];
};

#define X(op)                                                                   \
    static void timed_##op(struct backend *be, const struct op_##op *d)         \
    {                                                                           \
        struct op_timer *t = (struct op_timer *)(uintptr_t)be->ops;             \
        struct err ignored = ERR_INIT; /* sticky: the caller's be_sync has it */ \
        double start = now_s();                                                 \
        t->real->op(be, d);                                                     \
        t->real->sync(be, &ignored);                                            \
        t->part[OP_##op].time_s += now_s() - start;                             \
        t->part[OP_##op].flops += cost_##op(d).flops;                           \
        t->part[OP_##op].calls++;                                               \
    }
BACKEND_OPS(X)
#undef X

static void timer_on(struct op_timer *t, struct backend *be)
{
    *t = (struct op_timer){.ops = *be->ops, .real = be->ops};
#define X(op) t->ops.op = timed_##op;
    BACKEND_OPS(X)
#undef X
    be->ops = &t->ops;
}

static void timer_off(struct op_timer *t, struct backend *be)
{
    be->ops = t->real;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One warm-up, the timed calls, and one more call with times by op (which on a GPU waits after every op). */
static int repeat(struct backend *be, int (*call)(void *ctx, struct err *e), void *ctx, struct bench_run *out, struct err *e)
{
    double t[BENCH_REPS_DEVICE];
    struct op_timer timer;
    const int reps = out->reps = be_is_host(be) ? BENCH_REPS : BENCH_REPS_DEVICE;
    TRY(call(ctx, e));
    double flops = be->flops;
    for (int i = 0; i < reps; i++) {
        double start = now_s();
        TRY(call(ctx, e));
        TRY(be_sync(be, e));
        t[i] = now_s() - start;
    }
    out->flops = (be->flops - flops) / reps;
    qsort(t, (size_t)reps, sizeof *t, by_value);
    out->time_s = t[reps / 2];
    out->best_s = t[0];
    timer_on(&timer, be);
    int rc = call(ctx, e);
    timer_off(&timer, be);
    memcpy(out->part, timer.part, sizeof out->part);
    out->peak_bytes = (double)be->mem_peak_bytes;
    return rc;
}

static int32_t *random_ids(int64_t n, int64_t vocab, uint64_t seed, struct err *e)
{
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    if (!ids)
        err_nomem(e, (size_t)n * sizeof *ids, "random ids");
    for (int64_t i = 0; ids && i < n; i++)
        ids[i] = (int32_t)ctr_below(seed, 0, (uint64_t)i, (uint64_t)vocab);
    return ids;
}

/* ---- steps ---- */

struct stepper {
    const struct bench_step_opts *o;
    struct backend *be;
    struct model *teacher, *student; /* student: the mixture or the hybrid; stage 1 has none */
    struct linset *lin;
    struct params *params;           /* that learn; NULL: the mixture weights alone */
    struct shard shard;              /* random ids, in memory */
    struct hcache cache;             /* the teacher's hidden rows, in memory */
    struct stream st;
    struct acts acts;
    struct dmem keep, tmp;           /* stage 1: one mixer alone */
    struct view y, ds, w, loss, dp, norm;
    float *host;
    int64_t row[64], R, step;
    double value;
};

static int make_shard(struct stepper *s, struct err *e)
{
    struct shard *d = &s->shard;
    *d = (struct shard){.rows = s->o->rows, .seq = s->o->seq, .vocab = s->teacher->cfg.N, .tokens = s->R};
    uint8_t *mask = calloc((size_t)s->R, 1);
    d->len = malloc((size_t)d->rows * sizeof *d->len);
    d->ids = random_ids(s->R, d->vocab, s->o->seed, e);
    d->mask = mask;
    if (!mask || !d->len || !d->ids)
        return err_nomem(e, (size_t)s->R, "random rows");
    for (int64_t r = 0; r < d->rows; r++) {
        s->row[r] = r;
        d->len[r] = (int32_t)d->seq;
    }
    return 0;
}

/* The teacher's hidden rows, computed once outside the timed part. */
static int make_cache(struct stepper *s, struct err *e)
{
    int64_t D = s->teacher->cfg.d;
    size_t bytes = (size_t)(s->R * D) * sizeof(float);
    TRY(stream_open(&s->st, s->be, &s->shard, s->teacher, NULL, s->o->rows, 1, e));
    TRY(stream_set(&s->st, s->row, (int)s->o->rows, e));
    if (s->o->teacher && s->o->stage != 1) /* the stream that is open stays */
        return 0;
    float *h = malloc(bytes);
    if (!h)
        return err_nomem(e, bytes, "hidden rows");
    s->cache = (struct hcache){.map = {.p = (const uint8_t *)h, .len = bytes}, .rows = s->o->rows, .seq = s->o->seq, .dim = D};
    TRY(get_f32(s->be, h, view_at(s->st.t_hidden, 0, s->R * D), e));
    stream_close(&s->st);
    return stream_open(&s->st, s->be, &s->shard, s->teacher, &s->cache, s->o->rows, 1, e);
}

/* Stage 3: Full attention at every fifth layer (0, 5, 10 of the tiny teacher), GDN elsewhere. Stage 2: both in every layer but the
 * first, as DASH searches. */
static int make_student(struct stepper *s, struct err *e)
{
    unsigned ops[MCFG_MAX_LAYERS];
    bool search = s->o->stage == 2;
    for (int64_t l = 0; l < s->teacher->cfg.L; l++)
        ops[l] = search ? MIX_BIT(MIX_FULL) | (l ? MIX_BIT(MIX_GDN) : 0) | (l && s->o->window ? MIX_BIT(MIX_WINDOW) : 0) : l % 5 == 0
            ? MIX_BIT(MIX_FULL) : MIX_BIT(MIX_GDN);
    struct assemble_opts as = {.ops = ops, .window = s->o->window, .copy = !search};
    TRY(model_assemble(&s->student, s->teacher, s->lin, &as, e));
    if (search)
        return be_view(s->be, s->be->stat, s->teacher->cfg.L * MIX_N_KINDS, &s->dp, e);
    s->params = &s->student->params;
    return 0;
}

static int open_alone(struct stepper *s, struct err *e)
{
    int32_t seqs = (int32_t)s->o->rows;
    size_t keep = 0, tmp = 0;
    int64_t D = s->teacher->cfg.d;
    for (int64_t l = 0; l < s->teacher->cfg.L; l++) {
        size_t k, t;
        TRY(mixer_plan(&s->lin->mixer[l], s->be, s->R, seqs, &k, &t, e));
        keep = MAX(keep, k);
        tmp = MAX(tmp, t);
    }
    s->params = &s->lin->params;
    s->host = malloc((size_t)s->R * sizeof *s->host);
    if (!s->host)
        return err_nomem(e, (size_t)s->R * sizeof *s->host, "losses");
    bool failed = dmem_open(&s->keep, s->be, keep, e) || dmem_open(&s->tmp, s->be, tmp, e) || be_view(s->be, s->be->act, s->R * D, &s->y,
        e) || be_view(s->be, s->be->act, s->R * D, &s->ds, e) || be_view(s->be, s->be->stat, s->R, &s->w, e) ||
        be_view(s->be, s->be->stat, s->R, &s->loss, e);
    return failed ? -1 : 0;
}

static int open_stepper(struct stepper *s, struct err *e)
{
    struct linset_opts lo = LINSET_OPTS;
    int stage = s->o->stage;
    struct acts_opts ao = {.rows = s->R, .seqs = (int32_t)s->o->rows, .train = stage != 1, .wgrad = stage == 3};
    lo.init.seed = s->o->seed;
    TRY(linset_make(&s->lin, s->teacher, &lo, e));
    TRY(make_shard(s, e));
    TRY(make_cache(s, e));
    TRY(stage == 1 ? open_alone(s, e) : make_student(s, e));
    TRY(acts_open(&s->acts, stage == 1 ? s->teacher : s->student, &ao, e));
    TRY(be_view(s->be, DT_F64, 1, &s->norm, e));
    if (!s->params)
        return 0;
    params_set_trainable(s->params, -1, true);
    return params_alloc(s->params, true, true, e);
}

static void close_stepper(struct stepper *s)
{
    if (s->st.be)
        stream_close(&s->st);
    if (s->acts.layer)
        acts_close(&s->acts);
    dmem_close(&s->keep);
    dmem_close(&s->tmp);
    struct view *v[] = {&s->y, &s->ds, &s->w, &s->loss, &s->dp, &s->norm};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(s->be, v[i]);
    if (s->student)
        model_close(s->student);
    if (s->lin)
        linset_close(s->lin);
    free((void *)(uintptr_t)s->cache.map.p);
    free((void *)(uintptr_t)s->shard.ids);
    free((void *)(uintptr_t)s->shard.mask);
    free(s->shard.len);
    free(s->host);
}

/* As the trainer's: norm of all gradients, clipping at 1, AdamW. */
static int update(struct stepper *s, struct err *e)
{
    double sq = 0, b1 = 0.9, b2 = 0.95, t = (double)++s->step;
    for (size_t i = 0; i < s->params->n; i++)
        be_sumsq(s->be, &(struct op_sumsq){.out = s->norm, .x = s->params->v[i]->g, .n = s->params->v[i]->g.n, .accumulate = i > 0});
    be_get(s->be, &sq, s->norm);
    TRY(be_sync(s->be, e));
    if (!finite_f64(sq))
        return ERR(e, E_NUMERIC, "bench step: stage %d: the gradient is not finite after %" PRId64 " steps", s->o->stage, s->step);
    for (size_t i = 0; i < s->params->n; i++) {
        struct param *p = s->params->v[i];
        be_adamw(s->be, &(struct op_adamw){.w = p->master, .w_act = p->w.p != p->master.p ? p->w : NO_VIEW, .m = p->m, .v = p->v, .g = p->g,
                                           .n = p->master.n, .lr = 1e-4, .b1 = b1, .b2 = b2, .eps = 1e-8, .wd = p->decay ? 0.01 : 0,
                                           .bc1 = 1 - pow(b1, t), .bc2 = 1 - pow(b2, t), .gscale = sq > 1 ? 1 / sqrt(sq) : 1});
    }
    return be_sync(s->be, e);
}

/* Stage 1, in the teacher's forward: the layer's linear mixer gets the same input and learns the same output. */
static void align_layer(void *ctx, int64_t l, struct view h, struct view y)
{
    struct stepper *s = ctx;
    const struct mixer *x = &s->lin->mixer[l];
    struct mx c = mixer_ctx(s->be, &s->keep, &s->tmp, &s->st.batch);
    struct mixer_save sv;
    size_t k = dmem_mark(&s->keep), t = dmem_mark(&s->tmp);
    struct err ignored = ERR_INIT; /* sticky */
    c.save = c.wgrad = true;
    mixer_fwd(&c, x, h, s->y, &sv);
    be_align_loss(s->be, &(struct op_align_loss){.loss = s->loss, .ds = s->ds, .s = s->y, .t = view_at(y, 0, s->R * s->teacher->cfg.d),
                                                 .w = s->w, .rows = s->R, .dim = s->teacher->cfg.d});
    mixer_bwd(&c, x, h, s->ds, NO_VIEW, &sv);
    dmem_release(&s->keep, k);
    dmem_release(&s->tmp, t);
    if (get_f32(s->be, s->host, s->loss, &ignored) == 0)
        for (int64_t r = 0; r < s->R; r++)
            s->value += (double)s->host[r] / (double)(s->R * s->teacher->cfg.L);
}

static int step_align(void *ctx, struct err *e)
{
    struct stepper *s = ctx;
    struct view hidden;
    struct fwd_opts fo = {.ctx = s, .on_mixer = align_layer};
    params_zero_grads(s->params);
    for (int64_t r = 0; r < s->R; r++)
        s->host[r] = (float)(1 / (double)(s->R * s->teacher->cfg.L));
    TRY(put_f32(s->be, s->w, s->host, e));
    TRY(stream_set(&s->st, s->row, (int)s->o->rows, e));
    s->value = 0;
    TRY(model_fwd(s->teacher, &s->acts, &s->st.batch, &fo, &hidden, e));
    return update(s, e);
}

static int step_kl(void *ctx, struct err *e)
{
    struct stepper *s = ctx;
    struct kl_sums k = {0};
    struct view hidden;
    bool wgrad = s->o->stage == 3;
    struct fwd_opts fo = {.save = true};
    struct bwd_opts bo = {.wgrad = wgrad, .dp = s->dp};
    if (wgrad)
        params_zero_grads(s->params);
    else
        be_zero(s->be, s->dp);
    TRY(stream_set(&s->st, s->row, (int)s->o->rows, e));
    TRY(model_fwd(s->student, &s->acts, &s->st.batch, &fo, &hidden, e));
    TRY(stream_kl(&s->st, s->student, hidden, POS_ALL, true, wgrad, 1 / (double)s->R, &k, e));
    TRY(model_bwd(s->student, &s->acts, &s->st.batch, view_at(s->st.dh, 0, s->R * s->teacher->cfg.d), &bo, e));
    s->value = k.all / k.n_all;
    return wgrad ? update(s, e) : be_sync(s->be, e);
}

int bench_step(struct model *teacher, const struct bench_step_opts *o, struct bench_run *out, struct err *e)
{
    struct stepper s = {.o = o, .be = teacher->be, .teacher = teacher, .R = o->rows * o->seq};
    *out = (struct bench_run){.tokens = (double)s.R};
    int rc = open_stepper(&s, e);
    if (rc == 0)
        rc = repeat(s.be, o->stage == 1 ? step_align : step_kl, &s, out, e);
    out->value = s.value;
    close_stepper(&s);
    return rc;
}

/* ---- prefill ---- */

struct prefiller {
    struct model *m;
    struct acts acts;
    struct batch batch;
    double *logits, value;
    int64_t rows;
};

static int prefill(void *ctx, struct err *e)
{
    struct prefiller *p = ctx;
    struct view hidden;
    int64_t D = p->m->cfg.d;
    TRY(model_fwd(p->m, &p->acts, &p->batch, NULL, &hidden, e));
    TRY(model_logits(p->m, view_at(hidden, (p->rows - 1) * D, D), 1, p->logits, e));
    p->value = p->logits[0];
    for (int64_t i = 1; i < p->m->cfg.N; i++)
        p->value = MAX(p->value, p->logits[i]);
    return be_sync(p->m->be, e);
}

int bench_prefill(struct model *m, int64_t rows, uint64_t seed, struct bench_run *out, struct err *e)
{
    struct prefiller p = {.m = m, .rows = rows};
    struct acts_opts ao = {.rows = rows, .seqs = 1};
    int32_t len = (int32_t)rows, *ids = random_ids(rows, m->cfg.N, seed, e);
    const int32_t *tok = ids;
    *out = (struct bench_run){.tokens = (double)rows};
    p.logits = malloc((size_t)m->cfg.N * sizeof *p.logits);
    int rc = ids && p.logits ? 0 : err_nomem(e, (size_t)m->cfg.N * sizeof *p.logits, "logits");
    if (rc == 0 && (batch_open(&p.batch, m->be, rows, 1, e) || acts_open(&p.acts, m, &ao, e) ||
                    batch_set(&p.batch, 1, &tok, &len, NULL, m->cfg.N, e)))
        rc = -1;
    if (rc == 0)
        rc = repeat(m->be, prefill, &p, out, e);
    out->value = p.value;
    if (p.acts.layer)
        acts_close(&p.acts);
    if (p.batch.be)
        batch_close(&p.batch);
    free(p.logits);
    free(ids);
    return rc;
}
