/* Forward sweeps of a model with one layer changed: zeroed, restored or converted. Layers before it are not computed again: the sweep
 * goes on from the kept residual stream. */
#include <stdlib.h>
#include <string.h>

#include "baselines/selector.h"
#include "core/prog.h"
#include "core/prov.h"

int switch_model(struct model **out, const struct model *teacher, const struct linset *lin, enum mixer_kind kind, struct err *e)
{
    unsigned ops[MCFG_MAX_LAYERS];
    for (int64_t l = 0; l < teacher->cfg.L; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN);
    TRY(model_assemble(out, teacher, lin, &(struct assemble_opts){.ops = ops, .copy = false}, e));
    int rc = 0;
    for (int64_t l = 0; rc == 0 && l < teacher->cfg.L; l++)
        rc = model_set_ops(*out, l, MIX_BIT(kind), NULL, 0, e);
    if (rc != 0) {
        model_close(*out);
        *out = NULL;
    }
    return rc ? -1 : 0;
}

/* Before the layers are set to one operator each: memory for both kinds. */
static int open_acts(struct ablation *a, struct err *e)
{
    const struct select_input *in = a->in;
    struct acts_opts ao = {.rows = in->micro * in->data->seq, .seqs = (int32_t)in->micro};
    enum mixer_kind base = a->kind == SWEEP_RESTORE ? MIX_GDN : MIX_FULL;
    if (a->kind != SWEEP_ABLATE) { /* measured with the layer that needs most */
        TRY(switch_model(&a->m, in->teacher, in->lin, base, e));
        TRY(model_set_ops(a->m, 0, MIX_BIT(base == MIX_GDN ? MIX_FULL : MIX_GDN), NULL, 0, e));
    }
    TRY(acts_open(&a->acts, a->m, &ao, e));
    return a->kind == SWEEP_ABLATE ? 0 : model_set_ops(a->m, 0, MIX_BIT(base), NULL, 0, e);
}

int ablation_open(struct ablation *a, const struct select_input *in, enum sweep_kind kind, struct err *e)
{
    *a = (struct ablation){.in = in, .kind = kind, .m = kind == SWEEP_ABLATE ? in->teacher : NULL};
    int rc = open_acts(a, e) || stream_open(&a->st, in->be, in->data, in->teacher, in->cache, in->micro, 1, e);
    if (rc != 0)
        ablation_close(a);
    return rc ? -1 : 0;
}

void ablation_close(struct ablation *a)
{
    stream_close(&a->st);
    if (a->acts.layer)
        acts_close(&a->acts);
    if (a->kind != SWEEP_ABLATE && a->m)
        model_close(a->m);
    *a = (struct ablation){0};
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

int ablation_sweep(struct ablation *a, int (*measure)(void *, struct ablation *, int, struct view, double *, struct err *), void *ctx,
                   double *per_layer, double *base, struct err *e)
{
    const struct select_input *in = a->in;
    struct model *t = a->m;
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
            ablate[l] = a->kind == SWEEP_ABLATE;
            if (a->kind != SWEEP_ABLATE)
                rc = model_set_ops(t, l, MIX_BIT(a->kind == SWEEP_RESTORE ? MIX_FULL : MIX_GDN), NULL, 0, e);
            struct fwd_opts lo = {.ablate = ablate, .first = l, .x0 = view_at(ks.x, l * ks.each, a->st.batch.seqs.rows * t->cfg.d)};
            if (rc == 0)
                rc = model_fwd(t, &a->acts, &a->st.batch, &lo, &h, e) || measure(ctx, a, l, h, &per_layer[l], e);
            if (rc == 0 && a->kind != SWEEP_ABLATE)
                rc = model_set_ops(t, l, MIX_BIT(a->kind == SWEEP_RESTORE ? MIX_GDN : MIX_FULL), NULL, 0, e);
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
