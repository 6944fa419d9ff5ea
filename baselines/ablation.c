/* Forward sweeps of the teacher with one layer's mixer output set to zero. Layers before the ablated one are not computed again: the sweep goes on from the kept residual stream. */
#include <stdlib.h>
#include <string.h>

#include "baselines/selector.h"
#include "core/prog.h"
#include "core/prov.h"

int ablation_open(struct ablation *a, const struct select_input *in, struct err *e)
{
    *a = (struct ablation){.in = in};
    struct acts_opts ao = {.rows = in->micro * in->data->seq, .seqs = (int32_t)in->micro};
    TRY(acts_open(&a->acts, in->teacher, &ao, e));
    if (stream_open(&a->st, in->be, in->data, in->teacher, in->cache, in->micro, 1, e) != 0) {
        acts_close(&a->acts);
        return -1;
    }
    return 0;
}

void ablation_close(struct ablation *a)
{
    stream_close(&a->st);
    acts_close(&a->acts);
}

struct keep_stream {
    struct backend *be;
    struct view x; /* [L, R, D] */
    int64_t each, L;
};
static void keep(void *ctx, int64_t i, struct view x)
{
    struct keep_stream *k = ctx;
    if (i < k->L)
        be_copy(k->be, view_at(k->x, i * k->each, x.n), x);
}

int ablation_sweep(struct ablation *a, int (*measure)(void *, struct ablation *, int, struct view, double *, struct err *), void *ctx, double *per_layer, double *base, struct err *e)
{
    const struct select_input *in = a->in;
    struct model *t = in->teacher;
    struct keep_stream ks = {.be = in->be, .L = t->cfg.L, .each = in->micro * in->data->seq * t->cfg.d};
    bool ablate[MCFG_MAX_LAYERS] = {0};
    struct prog bar;
    TRY(be_view(in->be, in->be->act, ks.L * ks.each, &ks.x, e));
    *base = 0;
    memset(per_layer, 0, sizeof *per_layer * (size_t)in->layers);
    prog_start(&bar, "ablation", "tok", (in->row_hi - in->row_lo) * in->data->seq * (in->layers + 1));
    int rc = 0;
    for (int64_t r = in->row_lo; rc == 0 && r < in->row_hi; r += in->micro) {
        int64_t rows[64];
        int n = (int)MIN(MIN(in->micro, 64), in->row_hi - r);
        for (int i = 0; i < n; i++)
            rows[i] = r + i;
        struct view h;
        struct fwd_opts fo = {.ctx = &ks, .on_stream = keep};
        rc = stream_set(&a->st, rows, n, e) || model_fwd(t, &a->acts, &a->st.batch, &fo, &h, e) || measure(ctx, a, -1, h, base, e);
        double R = (double)a->st.batch.seqs.rows;
        a->tokens += R;
        for (int l = 0; rc == 0 && l < in->layers; l++) {
            ablate[l] = true;
            struct fwd_opts lo = {.ablate = ablate, .first = l, .x0 = view_at(ks.x, l * ks.each, a->st.batch.seqs.rows * t->cfg.d)};
            rc = model_fwd(t, &a->acts, &a->st.batch, &lo, &h, e) || measure(ctx, a, l, h, &per_layer[l], e);
            ablate[l] = false;
            a->tokens += R;
            prog_update(&bar, (int64_t)a->tokens, NULL);
        }
        if (rc == 0 && interrupted())
            rc = ERR(e, E_INTERRUPTED, "interrupted while scoring layers");
    }
    prog_end(&bar);
    be_view_free(in->be, &ks.x);
    return rc ? -1 : 0;
}
