/*
 * HALO: each layer of the teacher in turn becomes its Stage-1 linear mixer, untrained; a large loss of recall R and a small loss of
 * common-sense ability C say keep [selectors.md B.11]. The paper's R is SQuAD, FDA and SWDE, its C HellaSwag and ARC; here the cheap
 * stand-ins: R = mean accuracy of KV, AR and a single needle (with --probe-form ruler all in RULER's templates), C = share of next
 * tokens that are the argmax on the shard.
 */
#include "baselines/halo.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/probe.h"
#include "kernels/ops.h"

const struct probe probe_needle = {.name = "needle", .ruler = {.name = "niah_single_2", .kind = K_NIAH, .gen_tokens = 128,
                                         .stack = S_ESSAY, .key = T_WORDS, .value = T_NUMBERS, .k = 1, .v = 1, .q = 1}};

void halo_scores(const double *recall, const double *common, int layers, double *score)
{
    double r = recall[0], c = common[0];
    for (int l = 1; l < layers; l++) {
        r = fmax(r, recall[l]);
        c = fmax(c, common[l]);
    }
    for (int l = 0; l < layers; l++)
        score[l] = fmin((r - recall[l]) / (c - common[l] + HALO_EPS), HALO_CLIP);
}

/* ---- C ---- */

struct next_ctx {
    struct view lp, best, target;
    int32_t *ids, *hit;
    double count;
};

static int next_hits(void *ctx, struct ablation *a, int layer, struct view hidden, double *value, struct err *e)
{
    struct next_ctx *c = ctx;
    const struct select_input *in = a->in;
    const struct seqs *s = &a->st.batch.seqs;
    int64_t R = s->rows, D = in->teacher->cfg.d;
    if (layer < 0) {
        for (int32_t i = 0; i < s->n; i++)
            for (int32_t r = s->q_off[i]; r < s->q_off[i + 1]; r++) {
                bool last = r + 1 == s->q_off[i + 1];
                c->ids[r] = last || (in->positions == POS_ANSWERS && a->st.host_kl[r] == 0) ? -1 : a->st.batch.h_ids[r + 1];
                c->count += c->ids[r] >= 0;
            }
        be_put(in->be, view_at(c->target, 0, R), c->ids);
    }
    be_head_ce(in->be, &(struct op_head_ce){.lp = view_at(c->lp, 0, R), .best = view_at(c->best, 0, R), .h = view_at(hidden, 0, R * D),
                                            .w = model_head(in->teacher)->w, .target = view_at(c->target, 0, R), .rows = R, .dim = D,
                                            .vocab = in->teacher->cfg.N});
    be_get(in->be, c->hit, view_at(c->best, 0, R));
    TRY(be_sync(in->be, e));
    for (int64_t r = 0; r < R; r++)
        *value += c->ids[r] >= 0 && c->hit[r] == c->ids[r];
    return 0;
}

static int common_sense(const struct select_input *in, double common[MAX_LAYERS], struct selection *out, struct err *e)
{
    struct ablation a;
    struct next_ctx c = {0};
    int64_t R = in->micro * in->data->seq;
    double base;
    TRY(ablation_open(&a, in, SWEEP_CONVERT, e));
    c.ids = malloc((size_t)R * 2 * sizeof *c.ids);
    c.hit = c.ids + (c.ids ? R : 0);
    int rc = c.ids ? 0 : err_nomem(e, (size_t)R * 8, "targets");
    if (rc == 0)
        rc = be_view(in->be, in->be->stat, R, &c.lp, e) || be_view(in->be, DT_I32, R, &c.best, e) ||
            be_view(in->be, DT_I32, R, &c.target, e) || ablation_sweep(&a, next_hits, &c, common, &base, e);
    for (int l = 0; l < in->layers; l++)
        common[l] /= fmax(c.count, 1);
    be_view_free(in->be, &c.lp);
    be_view_free(in->be, &c.best);
    be_view_free(in->be, &c.target);
    free(c.ids);
    out->tokens += (int64_t)a.tokens;
    ablation_close(&a);
    return rc ? -1 : 0;
}

/* ---- R ---- */

struct recall_ctx {
    const struct select_input *in;
    struct model *m;
    const struct probe_set *set;
};

static int recall_of(void *ctx, int layer, double *value, int64_t *tokens, struct err *e)
{
    struct recall_ctx *c = ctx;
    if (layer >= 0)
        TRY(model_set_ops(c->m, layer, MIX_BIT(MIX_GDN), NULL, 0, e));
    TRY(probe_accuracy(c->m, c->set, NULL, c->in->probe.batch, NULL, value, tokens, e));
    return layer < 0 ? 0 : model_set_ops(c->m, layer, MIX_BIT(MIX_FULL), NULL, 0, e);
}

static int recall(const struct select_input *in, const struct probe_set *set, struct per_layer *out, struct err *e)
{
    struct recall_ctx c = {.in = in, .set = set};
    TRY(switch_model(&c.m, in->teacher, in->lin, MIX_FULL, e));
    int rc = per_layer_run(in, PROBE_INFORMATIVE, recall_of, &c, out, e);
    model_close(c.m);
    return rc;
}

int halo_select(const struct select_input *in, const struct probe_set *set, struct selection *out, struct err *e)
{
    double kept[MAX_LAYERS], common[MAX_LAYERS];
    struct per_layer *v = malloc(sizeof *v);
    int rc = v ? recall(in, set, v, e) : err_nomem(e, sizeof *v, "scores");
    double f1 = in->be->flops; /* recall's are in v, with those of earlier attempts */
    if (rc == 0) {
        out->base = v->base;
        out->has_base = true;
        out->uninformative = out->base < PROBE_INFORMATIVE;
        out->has_score = !out->uninformative;
        out->tokens = v->tokens;
    }
    for (int l = 0; l < in->layers; l++)
        out->kind[l] = MIX_GDN;
    if (rc == 0 && out->has_score) {
        rc = common_sense(in, common, out, e);
        for (int l = 0; l < in->layers; l++)
            kept[l] = v->value[l];
        if (rc == 0) {
            halo_scores(kept, common, in->layers, out->score);
            selection_top(out, in->budget, in->exclude);
        }
    }
    if (rc == 0)
        out->flops_forward = v->flops + in->be->flops - f1;
    free(v);
    return rc;
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    static const struct probe *const part[] = {&probe_kv, &probe_ar, &probe_needle};
    struct probe_set set = {0};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(part); i++)
        rc = probe_make(part[i], in, &set, e);
    if (rc == 0 && in->out_dir)
        rc = probe_save(&set, in->out_dir, e);
    if (rc == 0)
        rc = halo_select(in, &set, out, e);
    snprintf(out->variant, sizeof out->variant, "stand-ins%s", in->probe.ruler ? ", RULER form" : "");
    probe_set_free(&set);
    return rc;
}

const struct selector sel_halo = {.name = "halo", .title = "HALO",
                                  .about = "loss of recall over loss of next-token accuracy when the layer is converted",
                                  .needs = "teacher with tokenizer, Stage 1, data", .cost = "2(L+1) runs, one of them generating",
                                  .source = "HALO text and code; tasks replaced by stand-ins proposed here", .certain = false,
                                  .needs_teacher = true, .needs_linear = true, .needs_data = true, .needs_tokenizer = true, .version = 1,
                                  .pick = pick};
