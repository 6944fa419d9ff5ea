/* Bilevel search: the weights' half. */
#include "dash/bilevel.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/ops.h"
#include "model/st.h"

int bilevel_open(struct bilevel *b, struct model *super, double lr, uint64_t seed, int64_t lo, int64_t hi, struct err *e)
{
    *b = (struct bilevel){.be = super->be, .lr = lr, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .clip = 1};
    params_set_trainable(&super->params, -1, false);
    params_set_trainable(&super->params, PG_MIXER, true);
    b->param = calloc(super->params.n + 1, sizeof *b->param);
    if (!b->param)
        return err_nomem(e, super->params.n * sizeof *b->param, "weights of the search");
    if (params_alloc(&super->params, true, true, e) || be_view(b->be, DT_F64, 1, &b->norm, e) || order_init(&b->order, seed, lo, hi, e)) {
        bilevel_close(b);
        return -1;
    }
    for (size_t i = 0; i < super->params.n; i++)
        if (super->params.v[i]->trainable)
            b->param[b->n++] = super->params.v[i];
    params_zero_grads(&super->params);
    return 0;
}

void bilevel_close(struct bilevel *b)
{
    if (!b->be)
        return;
    be_view_free(b->be, &b->norm);
    if (b->order.perm)
        order_free(&b->order);
    free(b->param);
    *b = (struct bilevel){0};
}

static int apply(struct bilevel *b, struct err *e)
{
    double sq = 0;
    for (size_t i = 0; i < b->n; i++)
        be_sumsq(b->be, &(struct op_sumsq){.out = b->norm, .x = b->param[i]->g, .n = b->param[i]->g.n, .accumulate = i > 0});
    be_get(b->be, &sq, b->norm);
    TRY(be_sync(b->be, e));
    if (!finite_f64(sq))
        return ERR(e, E_NUMERIC, "bilevel search: the gradient of the weights is not finite; lower the learning rate of the weights");
    double mean = 1 / (double)b->pending, norm = sqrt(sq) * mean, scale = mean * (norm > b->clip ? b->clip / norm : 1);
    b->updates++;
    b->pending = 0;
    for (size_t i = 0; i < b->n; i++) {
        struct param *p = b->param[i];
        be_adamw(b->be, &(struct op_adamw){.w = p->master, .w_act = p->w.p != p->master.p ? p->w : NO_VIEW, .m = p->m, .v = p->v, .g = p->g,
                                           .n = p->master.n, .lr = b->lr, .b1 = b->b1, .b2 = b->b2, .eps = b->eps,
                                           .bc1 = 1 - pow(b->b1, (double)b->updates), .bc2 = 1 - pow(b->b2, (double)b->updates),
                                           .gscale = scale});
        be_zero(b->be, p->g);
    }
    return be_sync(b->be, e);
}

int bilevel_step(struct bilevel *b, struct model *super, struct acts *acts, struct stream *st, int64_t step, int n, enum positions pos,
                 bool update, int64_t *tokens, struct err *e)
{
    int64_t rows[64];
    struct kl_sums k = {0};
    struct view hidden;
    struct fwd_opts fo = {.save = true};
    struct bwd_opts bo = {.wgrad = true};
    double weight = 0;
    for (int i = 0; i < n; i++) {
        rows[i] = order_row(&b->order, step * n + i);
        weight += stream_weight(st->shard, rows[i], pos);
        *tokens += st->shard->len[rows[i]];
    }
    TRY(stream_set(st, rows, n, e));
    double f0 = b->be->flops;
    TRY(model_fwd(super, acts, &st->batch, &fo, &hidden, e));
    st->flops_forward += b->be->flops - f0;
    TRY(stream_kl(st, super, hidden, pos, true, false, weight > 0 ? 1 / weight : 0, &k, e));
    TRY(model_bwd(super, acts, &st->batch, view_at(st->dh, 0, st->batch.seqs.rows * super->cfg.d), &bo, e));
    b->pending++;
    return update ? apply(b, e) : 0;
}

/* ---- state ---- */

enum part { PART_W, PART_M, PART_V, PART_G, PARTS };
static const char *const prefix[PARTS] = {"w.", "m.", "v.", "g."};

static struct view part_of(const struct param *p, enum part part)
{
    return part == PART_W ? p->master : part == PART_M ? p->m : part == PART_V ? p->v : p->g;
}

static char *file_of(char dst[1024], const char *dir, int64_t step)
{
    char name[64];
    snprintf(name, sizeof name, "weights-%" PRId64 ".safetensors", step);
    return path_join(dst, dir, name);
}

void bilevel_drop(const char *dir, int64_t step)
{
    char path[1024];
    unlink(file_of(path, dir, step));
}

static int put_tensor(struct bilevel *b, struct st_out *w, const struct param *p, enum part part, struct err *e)
{
    char name[320];
    struct view v = part_of(p, part);
    size_t bytes = (size_t)v.n * dtype_size(v.dt);
    void *host = malloc(bytes);
    if (!host)
        return err_nomem(e, bytes, "a checkpoint tensor");
    snprintf(name, sizeof name, "%s%s", prefix[part], p->name);
    be_get(b->be, host, v);
    int rc = be_sync(b->be, e) || st_out_raw(w, name, host, bytes, e);
    free(host);
    return rc ? -1 : 0;
}

int bilevel_save(struct bilevel *b, const char *dir, int64_t step, struct err *e)
{
    char path[1024], counts[64];
    struct st_out *w;
    TRY(st_out_open(&w, file_of(path, dir, step), e));
    snprintf(counts, sizeof counts, "%" PRId64 " %" PRId64, b->updates, b->pending);
    int rc = st_out_meta(w, "counts", counts, e);
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++) {
            char name[320];
            snprintf(name, sizeof name, "%s%s", prefix[p], b->param[i]->name);
            rc = st_out_declare(w, name, b->be->stat == DT_F64 ? ST_F64 : ST_F32, 1, &b->param[i]->master.n, e);
        }
    if (rc == 0)
        rc = st_out_begin(w, e);
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++)
            rc = put_tensor(b, w, b->param[i], p, e);
    if (rc == 0)
        return st_out_commit(w, e);
    st_out_abort(w);
    return -1;
}

int bilevel_load(struct bilevel *b, const char *dir, int64_t step, struct err *e)
{
    char path[1024];
    struct st_file f;
    TRY(st_open(&f, file_of(path, dir, step), e));
    const char *counts = st_meta(&f, "counts");
    long long updates = 0, pending = 0;
    int rc = counts && sscanf(counts, "%lld %lld", &updates, &pending) == 2 ? 0 : ERR(e, E_INPUT,
        "'%s' is not the state of this search; remove the run's folder to start again", path);
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        for (enum part p = 0; rc == 0 && p < PARTS; p++) {
            char name[320];
            struct view v = part_of(b->param[i], p);
            size_t bytes = (size_t)v.n * dtype_size(v.dt);
            snprintf(name, sizeof name, "%s%s", prefix[p], b->param[i]->name);
            const struct st_tensor *t = st_find(&f, name);
            void *host = t && t->bytes == bytes ? malloc(bytes) : NULL; /* the device copy wants aligned memory */
            if (!host) {
                rc = t && t->bytes == bytes ? err_nomem(e, bytes, "a checkpoint tensor") : ERR(e, E_INPUT,
                    "'%s': tensor '%s' is missing or of another size; remove the run's folder to start again", path, name);
                break;
            }
            memcpy(host, t->data, bytes);
            be_put(b->be, v, host);
            rc = be_sync(b->be, e);
            free(host);
        }
    for (size_t i = 0; rc == 0 && i < b->n; i++)
        if (b->param[i]->w.p != b->param[i]->master.p)
            be_cast(b->be, &(struct op_cast){.dst = b->param[i]->w, .src = b->param[i]->master, .n = b->param[i]->w.n});
    b->updates = updates;
    b->pending = pending;
    st_close(&f);
    return rc ? -1 : 0;
}
