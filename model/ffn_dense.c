#include "model/ffn.h"

#include "kernels/ops.h"
#include "kernels/step.h"

enum { P_GATE, P_UP, P_DOWN, P_GATEB, P_UPB, P_DOWNB, P_COUNT };
enum { S_G, S_U };

static int dense_params(const struct ffn *x, struct mixer_param out[FFN_MAX_PARAMS])
{
    const struct mixer_param list[P_COUNT] = {
        [P_GATE] = {"gate_proj.weight", 2, {x->f, x->d}, true, false, true},
        [P_UP] = {"up_proj.weight", 2, {x->f, x->d}, true, false, true},
        [P_DOWN] = {"down_proj.weight", 2, {x->d, x->f}, true, false, true},
        [P_GATEB] = {"gate_proj.bias", 1, {x->f}, x->bias, false, true},
        [P_UPB] = {"up_proj.bias", 1, {x->f}, x->bias, false, true},
        [P_DOWNB] = {"down_proj.bias", 1, {x->d}, x->bias, false, true},
    };
    for (int i = 0; i < P_COUNT; i++)
        out[i] = list[i];
    return P_COUNT;
}

bool ffn_wants(const struct ffn *x, bool wgrad)
{
    for (int i = 0; i < FFN_MAX_PARAMS; i++)
        if (param_wants(x->p[i], wgrad))
            return true;
    return false;
}

static struct view activated(const struct mx *c, const struct ffn *x, struct view g, struct view u)
{
    int64_t n = c->seqs->rows * x->f;
    struct view h = dmem_take(c->tmp, c->be->act, n);
    be_swiglu(c->be, &(struct op_swiglu){.h = h, .g = g, .u = u, .n = n});
    return h;
}

static struct view bias_of(const struct param *p)
{
    return p ? p->w : NO_VIEW;
}

static void dense_fwd(const struct mx *c, const struct ffn *x, struct view h, struct view y, bool add, struct ffn_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct dmem *a = c->save ? c->keep : c->tmp;
    int64_t rows = c->seqs->rows;
    struct view g = dmem_take(a, c->be->act, rows * x->f), u = dmem_take(a, c->be->act, rows * x->f);
    struct step_linear l[2] = {{.y = g, .w = x->p[P_GATE]->w, .bias = bias_of(x->p[P_GATEB]), .n = x->f},
                               {.y = u, .w = x->p[P_UP]->w, .bias = bias_of(x->p[P_UPB]), .n = x->f}};
    struct view act;
    if (c->save) {
        be_linear_many(c->be, h, NULL, rows, x->d, l, 2);
        act = activated(c, x, g, u);
        sv->v[S_G] = g;
        sv->v[S_U] = u;
    } else { /* in place of the gate: of what a long prefill holds, these rows are the most */
        act = g;
        be_linear_swiglu(c->be, h, &c->norm, rows, x->d, l, act);
    }
    linear_fwd(c->be, rows, y, act, x->p[P_DOWN], x->p[P_DOWNB], add);
    dmem_release(c->tmp, mark);
}

static void dense_bwd(const struct mx *c, const struct ffn *x, struct view h, struct view dy, struct view dh, const struct ffn_save *sv)
{
    size_t mark = dmem_mark(c->tmp);
    struct backend *be = c->be;
    int64_t rows = c->seqs->rows, n = rows * x->f;
    struct view da = dmem_take(c->tmp, be->act, n), du = dmem_take(c->tmp, be->act, n), a = NO_VIEW;
    if (param_wants(x->p[P_DOWN], c->wgrad))
        a = activated(c, x, sv->v[S_G], sv->v[S_U]);
    linear_bwd(be, rows, da, false, dy, a, x->p[P_DOWN], x->p[P_DOWNB], c->wgrad);
    be_swiglu_bwd(be, &(struct op_swiglu_bwd){.dg = da, .du = du, .dh = da, .g = sv->v[S_G], .u = sv->v[S_U], .n = n});
    linear_bwd(be, rows, dh, false, da, h, x->p[P_GATE], x->p[P_GATEB], c->wgrad);
    linear_bwd(be, rows, dh, true, du, h, x->p[P_UP], x->p[P_UPB], c->wgrad);
    dmem_release(c->tmp, mark);
}

const struct ffn_type ffn_dense = {.name = "dense", .params = dense_params, .fwd = dense_fwd, .bwd = dense_bwd};
