/* LM-PPL: rise of the teacher's mean negative log-likelihood when a layer's mixer output is zero [selectors.md B.3; code unpublished,
 * the definition is an independent reproduction's]. */
#include <stdlib.h>

#include "baselines/selector.h"
#include "kernels/ops.h"

struct ppl_ctx {
    struct view lp, target, w;
    float *host;
    int32_t *ids;
    double count;
};

static int measure(void *ctx, struct ablation *a, int layer, struct view hidden, double *value, struct err *e)
{
    struct ppl_ctx *c = ctx;
    const struct select_input *in = a->in;
    const struct seqs *s = &a->st.batch.seqs;
    int64_t R = s->rows, D = in->teacher->cfg.d;
    if (layer < 0) { /* the targets of this micro-batch: the next token, none at the end of a row */
        for (int32_t i = 0; i < s->n; i++)
            for (int32_t r = s->q_off[i]; r < s->q_off[i + 1]; r++) {
                bool last = r + 1 == s->q_off[i + 1];
                c->ids[r] = last ? -1 : a->st.batch.h_ids[r + 1];
                if (in->positions == POS_ANSWERS && !last && a->st.host_kl[r] == 0)
                    c->ids[r] = -1;
                c->count += c->ids[r] >= 0;
            }
        be_put(in->be, view_at(c->target, 0, R), c->ids);
    }
    be_head_ce(in->be, &(struct op_head_ce){.lp = view_at(c->lp, 0, R), .h = view_at(hidden, 0, R * D), .w = model_head(in->teacher)->w,
                                            .target = view_at(c->target, 0, R), .rows = R, .dim = D, .vocab = in->teacher->cfg.N});
    TRY(get_f32(in->be, c->host, view_at(c->lp, 0, R), e));
    for (int64_t r = 0; r < R; r++)
        *value -= c->ids[r] >= 0 ? (double)c->host[r] : 0;
    return be_sync(in->be, e);
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct ablation a;
    struct ppl_ctx c = {0};
    int64_t R = in->micro * in->data->seq;
    double base = 0;
    TRY(ablation_open(&a, in, SWEEP_ABLATE, e));
    c.host = malloc((size_t)R * sizeof *c.host);
    c.ids = malloc((size_t)R * sizeof *c.ids);
    int rc = !c.host || !c.ids ? err_nomem(e, (size_t)R * 8, "targets") : 0;
    if (rc == 0)
        rc = be_view(in->be, in->be->stat, R, &c.lp, e) || be_view(in->be, DT_I32, R, &c.target, e) ||
            ablation_sweep(&a, measure, &c, out->score, &base, e);
    for (int l = 0; rc == 0 && l < in->layers; l++)
        out->score[l] = c.count > 0 ? (out->score[l] - base) / c.count : 0;
    be_view_free(in->be, &c.lp);
    be_view_free(in->be, &c.target);
    free(c.host);
    free(c.ids);
    out->tokens = (int64_t)a.tokens;
    out->has_score = true;
    ablation_close(&a);
    if (rc == 0)
        selection_top(out, in->budget, in->exclude);
    return rc ? -1 : 0;
}

const struct selector sel_lm_ppl = {.name = "lm-ppl", .title = "LM-PPL",
                                    .about = "rise of the teacher's NLL when the layer's mixer is zeroed", .needs = "teacher, data",
                                    .cost = "L+1 forward sweeps", .source = "GA-S2 row; definition after an independent reproduction",
                                    .certain = false, .needs_teacher = true, .needs_data = true, .version = 1, .pick = pick};
