/* Prefill and decoding, timed. */
#include "cli/bench_infer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/prog.h"
#include "core/rng.h"
#include "kernels/memory.h"
#include "kernels/ops.h"

/* ---- shapes [config.json of the models named] ---- */

static const struct shape {
    const char *name;
    enum mcfg_arch arch;
    int64_t L, d, H, G, head_dim, F, N;
    bool tie, qkv_bias, qk_norm;
    double theta;
} shapes[] = {
    {"qwen2.5-0.5b", ARCH_QWEN2, 24, 896, 14, 2, 64, 4864, 151936, true, true, false, 1e6},
    {"qwen2.5-3b", ARCH_QWEN2, 36, 2048, 16, 2, 128, 11008, 151936, true, true, false, 1e6},
    {"qwen2.5-7b", ARCH_QWEN2, 28, 3584, 28, 4, 128, 18944, 152064, false, true, false, 1e6},
    {"qwen3-4b", ARCH_QWEN3, 36, 2560, 32, 8, 128, 9728, 151936, true, false, true, 1e6},
    {"llama-3.2-1b", ARCH_LLAMA, 16, 2048, 32, 8, 64, 8192, 128256, true, false, false, 5e5},
    {"smollm2-135m", ARCH_LLAMA, 30, 576, 9, 3, 64, 1536, 49152, true, false, false, 1e5},
};

const char *const *infer_shape_names(void)
{
    static const char *const names[] = {"qwen2.5-0.5b", "qwen2.5-3b", "qwen2.5-7b", "qwen3-4b", "llama-3.2-1b", "smollm2-135m", NULL};
    return names;
}

bool infer_shape(const char *name, struct mcfg *c)
{
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        const struct shape *s = &shapes[i];
        if (strcmp(s->name, name) != 0)
            continue;
        *c = (struct mcfg){.arch = s->arch, .L = s->L, .d = s->d, .H = s->H, .G = s->G, .head_dim = s->head_dim, .F = s->F, .N = s->N,
                           .max_pos = 1 << 20, .eps = 1e-6, .tie_embeddings = s->tie, .qkv_bias = s->qkv_bias, .qk_norm = s->qk_norm,
                           .bos = -1, .pad = -1, .rope = {.theta = s->theta, .factor = 1, .attention_factor = 1, .truncate = true}};
        return true;
    }
    return false;
}

int infer_model(struct model **m, struct backend *be, const char *path_or_shape, uint64_t seed, struct err *e)
{
    struct mcfg c;
    struct model_open_opts mo = {0};
    struct init_normal init = {.seed = seed, .std = 0.02, .pool = be->pool};
    if (infer_shape(path_or_shape, &c))
        return model_new(m, be, &c, model_init_normal, &init, e);
    return model_open(m, be, path_or_shape, &mo, e);
}

/* ---- timing ---- */

struct inferer {
    struct model *m;
    const struct infer_opts *o;
    struct acts acts;
    struct batch batch;
    struct cache *cache;
    int32_t *ids;       /* [context] */
    int32_t *last;      /* [batch] next ids */
    struct view lp, best, target; /* [batch] of the head */
    double prefill[INFER_MAX_REPS], step[INFER_MAX_REPS];
    double prefill_peak, decode_peak, prefill_flops;
};

/* Greedy ids of n rows from `row` on, as decoding takes them. */
static int next_ids(struct inferer *f, struct view hidden, int64_t row, int32_t n, int32_t *out, struct err *e)
{
    const struct mcfg *c = &f->m->cfg;
    be_head_ce(f->m->be, &(struct op_head_ce){.lp = f->lp, .best = f->best, .h = view_at(hidden, row * c->d, n * c->d),
                                              .w = model_head(f->m)->w, .target = f->target, .rows = n, .dim = c->d, .vocab = c->N});
    be_get(f->m->be, out, view_at(f->best, 0, n));
    return be_sync(f->m->be, e);
}

/* Every prompt in one forward. */
static int prefill_whole(struct inferer *f, struct err *e)
{
    int32_t n = f->o->batch, *len = malloc((size_t)n * sizeof *len);
    const int32_t **tok = malloc((size_t)n * sizeof *tok);
    struct view hidden = NO_VIEW;
    int rc = tok && len ? 0 : err_nomem(e, (size_t)n * sizeof *tok, "a batch");
    for (int32_t s = 0; rc == 0 && s < n; s++) {
        tok[s] = f->ids;
        len[s] = (int32_t)f->o->context;
    }
    if (rc == 0)
        rc = batch_set(&f->batch, n, tok, len, NULL, f->m->cfg.N, e) || model_step(f->m, &f->acts, f->cache, 0, &f->batch, &hidden, e);
    for (int32_t s = 0; rc == 0 && s < n; s++)
        rc = next_ids(f, hidden, (s + 1) * f->o->context - 1, 1, &f->last[s], e);
    free(tok);
    free(len);
    return rc ? -1 : be_sync(f->m->be, e);
}

static int prefill_all(struct inferer *f, struct err *e)
{
    if (f->o->piece == 0)
        return prefill_whole(f, e);
    for (int32_t s = 0; s < f->o->batch; s++) {
        struct view hidden = NO_VIEW;
        int64_t n = 0;
        for (int64_t at = 0; at < f->o->context; at += n) {
            n = MIN(f->o->piece, f->o->context - at);
            const int32_t *tok = f->ids + at;
            int32_t len = (int32_t)n;
            TRY(batch_set(&f->batch, 1, &tok, &len, NULL, f->m->cfg.N, e));
            TRY(model_step(f->m, &f->acts, f->cache, s, &f->batch, &hidden, e));
        }
        TRY(next_ids(f, hidden, n - 1, 1, &f->last[s], e));
    }
    return be_sync(f->m->be, e);
}

static int decode_all(struct inferer *f, struct err *e)
{
    const int32_t **tok = malloc((size_t)f->o->batch * sizeof *tok);
    int32_t *len = malloc((size_t)f->o->batch * sizeof *len);
    int rc = tok && len ? 0 : err_nomem(e, (size_t)f->o->batch * sizeof *tok, "a batch");
    for (int64_t t = 0; rc == 0 && t < f->o->decode; t++) {
        struct view hidden = NO_VIEW;
        for (int32_t s = 0; s < f->o->batch; s++) {
            tok[s] = &f->last[s];
            len[s] = 1;
        }
        rc = batch_set(&f->batch, f->o->batch, tok, len, NULL, f->m->cfg.N, e) || model_step(f->m, &f->acts, f->cache, 0, &f->batch,
            &hidden, e) ? -1 : 0;
        rc = rc ? rc : next_ids(f, hidden, 0, f->o->batch, f->last, e);
    }
    free(tok);
    free(len);
    return rc ? -1 : be_sync(f->m->be, e);
}

static int one_rep(struct inferer *f, int rep, struct err *e)
{
    struct backend *be = f->m->be;
    for (int32_t s = 0; s < f->o->batch; s++)
        cache_reset(f->cache, s);
    be->mem_peak_bytes = be->mem_used_bytes;
    double flops = be->flops, t0 = now_s();
    TRY(prefill_all(f, e));
    double t1 = now_s();
    f->prefill_flops = be->flops - flops;
    f->prefill_peak = (double)be->mem_peak_bytes;
    be->mem_peak_bytes = be->mem_used_bytes;
    TRY(decode_all(f, e));
    f->decode_peak = (double)be->mem_peak_bytes;
    if (rep >= 0) {
        f->prefill[rep] = t1 - t0;
        f->step[rep] = f->o->decode ? (now_s() - t1) / (double)f->o->decode : 0;
    }
    return 0;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static struct infer_time spread(double *t, int n)
{
    qsort(t, (size_t)n, sizeof *t, by_value);
    return (struct infer_time){.median = n % 2 ? t[n / 2] : (t[n / 2 - 1] + t[n / 2]) / 2, .lo = t[n / 4], .hi = t[n - 1 - n / 4]};
}

static int infer_open(struct inferer *f, int64_t rows, struct err *e)
{
    const struct infer_opts *o = f->o;
    struct acts_opts ao = {.rows = rows, .seqs = o->batch};
    f->ids = malloc((size_t)o->context * sizeof *f->ids);
    f->last = calloc((size_t)o->batch, sizeof *f->last);
    if (!f->ids || !f->last)
        return err_nomem(e, (size_t)o->context * sizeof *f->ids, "random ids");
    for (int64_t i = 0; i < o->context; i++)
        f->ids[i] = (int32_t)ctr_below(o->seed, 0, (uint64_t)i, (uint64_t)f->m->cfg.N);
    TRY(be_view(f->m->be, f->m->be->stat, o->batch, &f->lp, e));
    TRY(be_view(f->m->be, DT_I32, o->batch, &f->best, e));
    TRY(be_view(f->m->be, DT_I32, o->batch, &f->target, e));
    TRY(batch_open(&f->batch, f->m->be, rows, o->batch, e));
    TRY(acts_open(&f->acts, f->m, &ao, e));
    return cache_open(&f->cache, f->m, o->batch, o->context + o->decode, e);
}

/* Rows of the largest forward. */
static int64_t most_rows(const struct infer_opts *o)
{
    return o->piece == 0 ? o->batch * o->context : MAX(MIN(o->piece, o->context), (int64_t)o->batch);
}

int infer_need(const struct model *m, const struct infer_opts *o, struct infer_run *out, struct err *e)
{
    size_t keep, tmp;
    int64_t rows = most_rows(o);
    struct acts_opts ao = {.rows = rows, .seqs = o->batch};
    *out = (struct infer_run){.weight_bytes = (double)m->be->mem_used_bytes, .cache_bytes = (double)cache_bytes(m, o->batch,
                                  o->context + o->decode)};
    TRY(acts_plan(m, &ao, &keep, &tmp, e));
    // ids, positions, offsets; the head's
    out->need_bytes = out->weight_bytes + out->cache_bytes + (double)keep + (double)tmp + (double)(8 * rows + 4 * (o->batch + 1) +
        12 * o->batch);
    return 0;
}

int bench_infer(struct model *m, const struct infer_opts *o, struct infer_run *out, struct err *e)
{
    struct inferer f = {.m = m, .o = o};
    TRY(infer_need(m, o, out, e));
    double has = (double)backend_device_bytes(m->be);
    out->limit_bytes = has > 0 && o->limit_bytes > 0 ? fmin(has, o->limit_bytes) : fmax(has, o->limit_bytes);
    out->fits = out->limit_bytes <= 0 || out->need_bytes <= out->limit_bytes;
    if (!out->fits)
        return 0;
    int rc = infer_open(&f, most_rows(o), e);
    for (int i = -o->warmup; rc == 0 && i < o->reps; i++)
        rc = one_rep(&f, i < 0 ? -1 : i, e);
    if (rc == 0) {
        out->prefill = spread(f.prefill, o->reps);
        out->step = spread(f.step, o->reps);
        out->prefill_flops = f.prefill_flops;
        out->prefill_peak = f.prefill_peak;
        out->decode_peak = f.decode_peak;
    }
    if (f.cache)
        cache_close(f.cache);
    if (f.acts.layer)
        acts_close(&f.acts);
    if (f.batch.be)
        batch_close(&f.batch);
    be_view_free(m->be, &f.lp);
    be_view_free(m->be, &f.best);
    be_view_free(m->be, &f.target);
    free(f.ids);
    free(f.last);
    return rc;
}
