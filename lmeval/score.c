/*
 * Log-likelihoods over the prefix tree. Nodes of one level are computed together, up to `batch` of them and STEP_ROWS tokens in a step;
 * each has a slot in its level's cache, begun as a copy of its parent's. How the ids are cut into steps is a function of the tree alone
 * (nodes, and stretches of STEP_ROWS in a long one), so batch and threads, and what is done already, change no bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/prov.h"
#include "kernels/half.h"
#include "kernels/ops.h"
#include "lmeval/tree.h"
#include "model/cache.h"

#define STEP_ROWS 2048
#define LOGIT_ROWS 16
#define MAX_LEVELS 4096

/* A row of hidden states that predicts something: targets t0..t1 of the tree. */
struct row {
    int32_t at;
    int64_t t0, t1;
};
struct exec {
    struct model *m;
    struct lme_req *req;
    const struct lme_score_opts *o;
    struct lme_tree tree;
    struct cache **level; /* [levels] */
    int32_t *slots;       /* [levels] */
    struct acts acts;
    struct batch batch;
    int32_t max_batch;
    int64_t rows; /* of acts */
    struct view gathered, lp, best, target, idx;
    double *h_lp, *logits, *value; /* value: log-probability of each id of each continuation */
    bool *hit;                     /* value's id was the argmax */
    int64_t *at;                   /* [n] a request's first place in value */
    int32_t *left;                 /* [n] ids without a value */
    int32_t *h_best, *h_target, *h_idx;
    struct row *row, *many; /* rows of a step: with one id asked for, with several */
    const int32_t **tok;
    int32_t *len;
    int64_t *finished, n_finished, n, done_tokens;
};

/* ---- memory ---- */

static void exec_close(struct exec *x)
{
    struct backend *be = x->m->be;
    for (int64_t l = 0; x->level && l < x->tree.cost.levels; l++)
        cache_close(x->level[l]);
    acts_close(&x->acts);
    batch_close(&x->batch);
    be_view_free(be, &x->gathered);
    be_view_free(be, &x->lp);
    be_view_free(be, &x->best);
    be_view_free(be, &x->target);
    be_view_free(be, &x->idx);
    void *mem[] = {x->level, x->slots,   x->h_lp,     x->logits, x->value, x->hit,  x->at,
                   x->left,  x->h_best,  x->h_target, x->h_idx,  x->row,   x->many, (void *)(uintptr_t)x->tok,
                   x->len,   x->finished};
    for (size_t i = 0; i < ARRAY_LEN(mem); i++)
        free(mem[i]);
    lme_tree_free(&x->tree);
}

/* Slots of each level: as many as the batch, the level and the memory allow. */
static int open_levels(struct exec *x, struct err *e)
{
    int64_t levels = x->tree.cost.levels, limit = x->o->cache_bytes ? x->o->cache_bytes : (int64_t)1 << 30;
    int64_t *cap = calloc((size_t)levels, sizeof *cap);
    int32_t *n = calloc((size_t)levels, sizeof *n);
    x->level = calloc((size_t)levels, sizeof *x->level);
    x->slots = calloc((size_t)levels, sizeof *x->slots);
    int rc = cap && n && x->level && x->slots ? 0 : err_nomem(e, (size_t)levels * 24, "scoring");
    for (int32_t i = 0; rc == 0 && i < x->tree.n_nodes; i++) {
        const struct lme_node *y = &x->tree.node[i];
        if (y->level < 0)
            continue;
        cap[y->level] = MAX(cap[y->level], (int64_t)y->end);
        n[y->level]++;
    }
    for (x->max_batch = MAX(x->o->batch, 1); rc == 0; x->max_batch = (x->max_batch + 1) / 2) {
        int64_t bytes = 0;
        for (int64_t l = 0; l < levels; l++)
            bytes += cache_bytes(x->m, MIN(n[l], x->max_batch), cap[l]);
        if (bytes <= limit || x->max_batch == 1)
            break;
    }
    for (int64_t l = 0; l < levels && rc == 0; l++) {
        x->slots[l] = MIN(n[l], x->max_batch);
        rc = cache_open(&x->level[l], x->m, x->slots[l], cap[l], e);
    }
    free(cap);
    free(n);
    return rc;
}

static int open_arrays(struct exec *x, struct err *e)
{
    struct backend *be = x->m->be;
    size_t n = (size_t)x->n, r = (size_t)x->rows, ids = (size_t)x->tree.n_targets, b = (size_t)x->max_batch;
    x->h_lp = calloc(r, sizeof *x->h_lp);
    x->h_best = calloc(r, sizeof *x->h_best);
    x->h_target = calloc(r, sizeof *x->h_target);
    x->h_idx = calloc(r, sizeof *x->h_idx);
    x->row = calloc(r, sizeof *x->row);
    x->many = calloc(r, sizeof *x->many);
    x->logits = calloc((size_t)LOGIT_ROWS * (size_t)x->m->cfg.N, sizeof *x->logits);
    x->value = calloc(ids + 1, sizeof *x->value);
    x->hit = calloc(ids + 1, sizeof *x->hit);
    x->at = calloc(n, sizeof *x->at);
    x->left = calloc(n, sizeof *x->left);
    x->finished = calloc(n, sizeof *x->finished);
    x->tok = calloc(b, sizeof *x->tok);
    x->len = calloc(b, sizeof *x->len);
    if (!x->h_lp || !x->h_best || !x->h_target || !x->h_idx || !x->row || !x->many || !x->logits || !x->value || !x->hit || !x->at ||
        !x->left || !x->finished || !x->tok || !x->len)
        return err_nomem(e, r * 64 + ids * 9 + n * 24, "scoring");
    int64_t at = 0;
    for (size_t i = 0; i < n; i++) {
        x->at[i] = at;
        x->left[i] = x->req[i].n_cont;
        at += x->req[i].n_cont;
    }
    return be_view(be, be->act, x->rows * x->m->cfg.d, &x->gathered, e) || be_view(be, be->stat, x->rows, &x->lp, e) ||
                   be_view(be, DT_I32, x->rows, &x->best, e) || be_view(be, DT_I32, x->rows, &x->target, e) ||
                   be_view(be, DT_I32, x->rows, &x->idx, e)
               ? -1
               : 0;
}

/* ---- rows to log-probabilities ---- */

static void set_value(struct exec *x, const struct lme_target *t, double lp, bool hit)
{
    int64_t k = x->at[t->req] + t->j;
    x->value[k] = lp;
    x->hit[k] = hit;
    if (--x->left[t->req] == 0 && !x->req[t->req].done)
        x->finished[x->n_finished++] = t->req;
}

static int gather(struct exec *x, struct view hidden, const struct row *row, int64_t n, struct err *e)
{
    int64_t d = x->m->cfg.d;
    for (int64_t i = 0; i < n; i++)
        x->h_idx[i] = row[i].at;
    be_put(x->m->be, view_at(x->idx, 0, n), x->h_idx);
    be_gather(x->m->be, &(struct op_gather){.dst = x->gathered, .src = hidden, .si = view_at(x->idx, 0, n), .rows = n, .dim = d});
    return be_sync(x->m->be, e);
}

/* Rows that one id is asked of: the fused head. */
static int score_single(struct exec *x, struct view hidden, int64_t n, struct err *e)
{
    struct backend *be = x->m->be;
    if (!n)
        return 0;
    TRY(gather(x, hidden, x->row, n, e));
    for (int64_t i = 0; i < n; i++)
        x->h_target[i] = x->tree.target[x->row[i].t0].token;
    be_put(be, view_at(x->target, 0, n), x->h_target);
    be_head_ce(be, &(struct op_head_ce){.lp = x->lp,
                                        .best = x->best,
                                        .h = x->gathered,
                                        .w = model_head(x->m)->w,
                                        .target = x->target,
                                        .rows = n,
                                        .dim = x->m->cfg.d,
                                        .vocab = x->m->cfg.N});
    be_get(be, x->h_best, view_at(x->best, 0, n));
    TRY(get_f64(be, x->h_lp, view_at(x->lp, 0, n), e));
    for (int64_t i = 0; i < n; i++) {
        if (!finite_f64(x->h_lp[i]))
            return ERR(e, E_NUMERIC, "a log-probability is not finite (request %d)", (int)x->tree.target[x->row[i].t0].req);
        for (int64_t t = x->row[i].t0; t < x->row[i].t1; t++)
            set_value(x, &x->tree.target[t], x->h_lp[i], x->h_best[i] == x->h_target[i]);
    }
    return 0;
}

static float to_bf16(float v)
{
    return bf16_to_f32(f32_to_bf16(v));
}

/* log(sum(exp z)) - max and the first maximum of a row. */
struct row_sum {
    double max, log_sum;
    int64_t best;
};
struct sums {
    const double *z;
    int64_t n;
    struct row_sum out[LOGIT_ROWS];
};
static void sum_row(void *ctx, int64_t i, int worker)
{
    struct sums *s = ctx;
    const double *z = s->z + i * s->n;
    struct row_sum r = {z[0], 0, 0};
    UNUSED(worker);
    for (int64_t v = 1; v < s->n; v++)
        if (z[v] > r.max) {
            r.max = z[v];
            r.best = v;
        }
    for (int64_t v = 0; v < s->n; v++)
        r.log_sum += exp(z[v] - r.max);
    r.log_sum = log(r.log_sum);
    s->out[i] = r;
}

/* The first id whose rounded log-probability is the largest. */
static int64_t bf16_best(const double *z, int64_t n, const struct row_sum *r)
{
    float top = to_bf16(-(float)r->log_sum);
    for (int64_t v = 0; v < n; v++)
        if (to_bf16((float)(z[v] - r->max) - (float)r->log_sum) == top)
            return v;
    return r->best;
}

/* Rows of which several ids are wanted, and all rows in bf16 mode: one row of logits each. */
static int score_many(struct exec *x, struct view hidden, const struct row *row, int64_t n, struct err *e)
{
    int64_t N = x->m->cfg.N;
    for (int64_t b = 0; b < n; b += LOGIT_ROWS) {
        int64_t k = MIN(n - b, (int64_t)LOGIT_ROWS);
        struct sums s = {.z = x->logits, .n = N};
        TRY(gather(x, hidden, row + b, k, e));
        TRY(model_logits(x->m, x->gathered, k, x->logits, e));
        for (int64_t i = 0; x->o->bf16 && i < k * N; i++)
            x->logits[i] = (double)to_bf16((float)x->logits[i]);
        pool_run(x->m->be->pool, k, sum_row, &s);
        for (int64_t i = 0; i < k; i++) {
            const double *z = x->logits + i * N;
            int64_t best = x->o->bf16 ? bf16_best(z, N, &s.out[i]) : s.out[i].best;
            for (int64_t t = row[b + i].t0; t < row[b + i].t1; t++) {
                const struct lme_target *y = &x->tree.target[t];
                double lp = z[y->token] - s.out[i].max - s.out[i].log_sum;
                if (x->o->bf16)
                    lp = (double)to_bf16((float)(z[y->token] - s.out[i].max) - (float)s.out[i].log_sum);
                if (!finite_f64(lp))
                    return ERR(e, E_NUMERIC, "a log-probability is not finite (request %d)", (int)y->req);
                set_value(x, y, lp, best == y->token);
            }
        }
    }
    return 0;
}

/* Sums of requests whose last value came in. */
static int finish(struct exec *x, struct err *e)
{
    for (int64_t i = 0; i < x->n_finished; i++) {
        struct lme_req *r = &x->req[x->finished[i]];
        double sum = 0;
        float sum32 = 0;
        r->greedy = true;
        for (int32_t j = 0; j < r->n_cont; j++) {
            int64_t k = x->at[x->finished[i]] + j;
            sum += x->value[k];
            sum32 += (float)x->value[k];
            r->greedy = r->greedy && x->hit[k];
        }
        r->ll = x->o->bf16 ? (double)to_bf16(sum32) : sum;
        r->done = true;
    }
    int rc = x->n_finished && x->o->done ? x->o->done(x->o->ctx, x->finished, x->n_finished, e) : 0;
    x->n_finished = 0;
    return rc;
}

/* ---- steps ---- */

/* Collects the rows of node i's targets at rows [lo, hi) of it, which lie at `first` in the step. */
static void rows_of(struct exec *x, int32_t i, int32_t lo, int32_t hi, int32_t first, int64_t *n_one, int64_t *n_many)
{
    const struct lme_node *y = &x->tree.node[i];
    const struct lme_target *t = x->tree.target;
    for (int64_t k = y->t0; k < y->t1;) {
        struct row r = {.at = first + t[k].row - lo, .t0 = k};
        bool one = true;
        for (r.t1 = k; r.t1 < y->t1 && t[r.t1].row == t[k].row; r.t1++)
            one = one && t[r.t1].token == t[k].token;
        if (t[k].row >= lo && t[k].row < hi) {
            if (one && !x->o->bf16)
                x->row[(*n_one)++] = r;
            else
                x->many[(*n_many)++] = r;
        }
        k = r.t1;
    }
}

/* Ids [begin, end) of a node's inputs. They lie in the request's context, its continuation, or across both: then they are copied to `mem`.
 */
static const int32_t *ids_of(const struct lme_req *r, int32_t begin, int32_t end, int32_t *mem)
{
    if (end <= r->n_ctx)
        return r->ctx + begin;
    if (begin >= r->n_ctx)
        return r->cont + begin - r->n_ctx;
    for (int32_t p = begin; p < end; p++)
        mem[p - begin] = lme_input_id(r, p);
    return mem;
}

static int step(struct exec *x, const int32_t *items, int32_t n, int32_t level, int32_t lo, int32_t hi, struct err *e)
{
    int64_t n_one = 0, n_many = 0;
    int32_t first = 0, mem_at = 0;
    int32_t *mem = malloc((size_t)x->rows * sizeof *mem);
    struct view hidden;
    if (!mem)
        return err_nomem(e, (size_t)x->rows * sizeof *mem, "a step");
    for (int32_t i = 0; i < n; i++) {
        const struct lme_node *y = &x->tree.node[items[i]];
        int32_t end = MIN(hi, y->end - y->begin);
        x->tok[i] = ids_of(&x->req[y->rep], y->begin + lo, y->begin + end, mem + mem_at);
        x->len[i] = end - lo;
        mem_at += x->len[i];
        rows_of(x, items[i], lo, end, first, &n_one, &n_many);
        first += x->len[i];
    }
    int rc = batch_set(&x->batch, n, x->tok, x->len, NULL, x->m->cfg.N, e) ||
                     model_step(x->m, &x->acts, x->level[level], 0, &x->batch, &hidden, e) || score_single(x, hidden, n_one, e) ||
                     score_many(x, hidden, x->many, n_many, e)
                 ? -1
                 : 0;
    free(mem);
    x->done_tokens += first;
    return rc;
}

static int run_list(struct exec *x, const int32_t *items, int32_t n, int32_t level, struct err *e);

/* Nodes side by side: states from their parents, their ids, then all their children. */
static int run_chunk(struct exec *x, const int32_t *items, int32_t n, int32_t level, struct err *e)
{
    int32_t longest = 0, kids = 0;
    if (interrupted())
        return ERR(e, E_INTERRUPTED, "interrupted; run again to go on");
    for (int32_t i = 0; i < n; i++) {
        struct lme_node *y = &x->tree.node[items[i]];
        y->slot = i;
        if (y->parent < 0)
            cache_reset(x->level[level], i);
        else
            TRY(cache_copy(x->level[level], i, x->level[level - 1], x->tree.node[y->parent].slot, e));
        longest = MAX(longest, y->end - y->begin);
        for (int32_t c = y->child; c >= 0; c = x->tree.node[c].next)
            kids++;
    }
    for (int32_t lo = 0; lo < longest; lo += STEP_ROWS) /* more than one round only for a long node, which is alone */
        TRY(step(x, items, n, level, lo, lo + STEP_ROWS, e));
    TRY(finish(x, e));
    if (x->o->progress)
        x->o->progress(x->o->ctx, x->done_tokens, x->tree.cost.tokens);
    if (!kids)
        return 0;
    int32_t *list = malloc((size_t)kids * sizeof *list), k = 0;
    if (!list)
        return err_nomem(e, (size_t)kids * sizeof *list, "a step");
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = x->tree.node[items[i]].child; c >= 0; c = x->tree.node[c].next)
            list[k++] = c;
    int rc = run_list(x, list, k, level + 1, e);
    free(list);
    return rc;
}

static int run_list(struct exec *x, const int32_t *items, int32_t n, int32_t level, struct err *e)
{
    int32_t *chunk = malloc((size_t)x->slots[level] * sizeof *chunk);
    int rc = chunk ? 0 : err_nomem(e, (size_t)x->slots[level] * sizeof *chunk, "a step");
    for (int32_t i = 0; i < n && rc == 0;) {
        int32_t k = 0;
        int64_t rows = 0;
        for (; i < n && k < x->slots[level]; i++) {
            const struct lme_node *y = &x->tree.node[items[i]];
            if (!y->pending)
                continue;
            if (k && rows + y->end - y->begin > x->rows)
                break;
            rows += y->end - y->begin;
            chunk[k++] = items[i];
        }
        if (k)
            rc = run_chunk(x, chunk, k, level, e);
    }
    free(chunk);
    return rc;
}

int lme_score(struct model *m, struct lme_req *req, int64_t n, const struct lme_score_opts *o, int64_t *tokens, struct err *e)
{
    struct exec x = {.m = m, .req = req, .o = o, .n = n};
    *tokens = 0;
    if (n < 1)
        return 0;
    TRY(lme_tree_make(&x.tree, req, n, true, e));
    x.rows = MIN((int64_t)STEP_ROWS, x.tree.cost.tokens);
    int32_t tops = 0, k = 0;
    for (int32_t i = x.tree.root; i >= 0; i = x.tree.node[i].next)
        tops++;
    int32_t *list = malloc((size_t)tops * sizeof *list);
    int rc = list ? 0 : err_nomem(e, (size_t)tops * sizeof *list, "scoring");
    if (rc == 0 && x.tree.cost.levels > MAX_LEVELS)
        rc = ERR(e, E_USAGE, "the requests' prefixes fork %" PRId64 " times in a row; at most %d", x.tree.cost.levels, MAX_LEVELS);
    for (int32_t i = x.tree.root; rc == 0 && i >= 0; i = x.tree.node[i].next)
        list[k++] = i;
    if (rc == 0)
        rc = open_levels(&x, e) || open_arrays(&x, e) ||
                     acts_open(&x.acts, m, &(struct acts_opts){.rows = x.rows, .seqs = x.max_batch}, e) ||
                     batch_open(&x.batch, m->be, x.rows, x.max_batch, e) || run_list(&x, list, tops, 0, e)
                 ? -1
                 : 0;
    *tokens = x.done_tokens;
    free(list);
    exec_close(&x);
    return rc;
}
