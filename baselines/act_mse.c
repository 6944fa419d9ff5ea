/* Act-MSE: mean squared change of the final hidden state when a layer's mixer output is zero [selectors.md B.4, proposed: after the
 * final norm]. */
#include <stdlib.h>

#include "baselines/selector.h"
#include "kernels/ops.h"

struct mse_ctx {
    struct view base, loss, w;
    float *host;
    double count;
};

static int measure(void *ctx, struct ablation *a, int layer, struct view hidden, double *value, struct err *e)
{
    struct mse_ctx *c = ctx;
    const struct select_input *in = a->in;
    int64_t R = a->st.batch.seqs.rows, D = in->teacher->cfg.d;
    if (layer < 0) {
        be_copy(in->be, view_at(c->base, 0, R * D), view_at(hidden, 0, R * D));
        for (int64_t r = 0; r < R; r++) {
            c->host[r] = in->positions == POS_ALL || a->st.host_kl[r] != 0;
            c->count += (double)c->host[r];
        }
        TRY(put_f32(in->be, view_at(c->w, 0, R), c->host, e));
        return be_sync(in->be, e);
    }
    be_align_loss(in->be, &(struct op_align_loss){.loss = view_at(c->loss, 0, R), .s = view_at(hidden, 0, R * D),
                                                  .t = view_at(c->base, 0, R * D), .w = view_at(c->w, 0, R), .rows = R, .dim = D,
                                                  .squared = true});
    TRY(get_f32(in->be, c->host, view_at(c->loss, 0, R), e));
    TRY(be_sync(in->be, e));
    for (int64_t r = 0; r < R; r++)
        *value += in->positions == POS_ALL || a->st.host_kl[r] != 0 ? (double)c->host[r] : 0;
    return 0;
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct ablation a;
    struct mse_ctx c = {0};
    int64_t R = in->micro * in->data->seq, D = in->teacher->cfg.d;
    double base = 0;
    TRY(ablation_open(&a, in, SWEEP_ABLATE, e));
    c.host = malloc((size_t)R * sizeof *c.host);
    int rc = c.host ? 0 : err_nomem(e, (size_t)R * sizeof *c.host, "losses");
    if (rc == 0)
        rc = be_view(in->be, in->be->act, R * D, &c.base, e) || be_view(in->be, in->be->stat, R, &c.loss, e) ||
            be_view(in->be, in->be->stat, R, &c.w, e) || ablation_sweep(&a, measure, &c, out->score, &base, e);
    for (int l = 0; rc == 0 && l < in->layers; l++)
        out->score[l] = c.count > 0 ? out->score[l] / c.count : 0;
    be_view_free(in->be, &c.base);
    be_view_free(in->be, &c.loss);
    be_view_free(in->be, &c.w);
    free(c.host);
    out->tokens = (int64_t)a.tokens;
    out->has_score = true;
    ablation_close(&a);
    if (rc == 0)
        selection_top(out, in->budget, in->exclude);
    return rc ? -1 : 0;
}

const struct selector sel_act_mse = {.name = "act-mse", .title = "Act-MSE",
                                     .about = "squared change of the final hidden state when the layer's mixer is zeroed",
                                     .needs = "teacher, data", .cost = "L+1 forward sweeps",
                                     .source = "GA-S2 row; definition proposed here", .certain = false, .needs_teacher = true,
                                     .needs_data = true, .version = 1, .pick = pick};
