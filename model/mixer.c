/* What all mixers share: the table of types, linear layers, a mixer on its own. */
#include "model/mixer.h"

#include <stdlib.h>

#include "kernels/ops.h"
#include "kernels/step.h"

const struct mixer_type *mixer_type_of(enum mixer_kind k)
{
    static const struct mixer_type *const types[] = {&mixer_attn, &mixer_gdn};
    for (size_t i = 0; i < ARRAY_LEN(types); i++)
        if (types[i]->kinds & MIX_BIT(k))
            return types[i];
    BUG("no mixer type for operator %d", (int)k);
}

struct view param_grad(const struct backend *be, const struct param *p)
{
    return !p->g.p && backend_is_null(be) ? (struct view){(void *)(uintptr_t)64, be->stat, p->n} : p->g;
}

void linear_fwd(struct backend *be, int64_t rows, struct view y, struct view x, const struct param *w, const struct param *bias, bool add)
{
    struct step_linear l = {.y = y, .w = w->w, .bias = bias ? bias->w : NO_VIEW, .n = w->dims[0], .add = add};
    be_linear_many(be, x, NULL, rows, w->dims[1], &l, 1);
}

struct view mx_normed(const struct mx *c, struct view h)
{
    const struct step_norm *n = &c->norm;
    if (!n->w.p)
        return h;
    int64_t rows = c->seqs->rows;
    be_rmsnorm(c->be, &(struct op_rmsnorm){.y = n->h, .x = h, .w = n->w, .rows = rows, .dim = h.n / rows, .eps = n->eps});
    return n->h;
}

void linear_bwd(struct backend *be, int64_t rows, struct view dx, bool add, struct view dy, struct view x, const struct param *w,
                const struct param *bias, bool wgrad)
{
    if (dx.p)
        be_gemm(be, &(struct op_gemm){.c = dx, .a = dy, .b = w->w, .m = rows, .n = w->dims[1], .k = w->dims[0], .accumulate = add});
    if (param_wants(w, wgrad))
        be_gemm(be,
                &(struct op_gemm){
                    .c = param_grad(be, w), .a = dy, .b = x, .m = w->dims[0], .n = w->dims[1], .k = rows, .ta = true, .accumulate = true});
    if (param_wants(bias, wgrad))
        be_colsum(be, &(struct op_colsum){.y = param_grad(be, bias), .x = dy, .rows = rows, .n = w->dims[0]});
}

struct mx mixer_ctx(struct backend *be, struct dmem *keep, struct dmem *tmp, const struct batch *b)
{
    return (struct mx){.be = be, .keep = keep, .tmp = tmp, .seqs = &b->seqs, .pos = b->pos, .save = true, .wgrad = true};
}

static struct mx alone(const struct mx *c, const struct mixer *x)
{
    struct mx own = *c;
    own.scaled = false;
    for (int k = MIX_N_KINDS - 1; !own.ops && k >= 0; k--) /* the caller's choice, or the type's only (or plainest) operator */
        if (x->type->kinds & MIX_BIT(k) && (k != MIX_WINDOW || !(x->type->kinds & MIX_BIT(MIX_FULL))))
            own.ops = MIX_BIT(k);
    return own;
}

void mixer_fwd(const struct mx *c, const struct mixer *x, struct view h, struct view y, struct mixer_save *sv)
{
    struct mx own = alone(c, x);
    x->type->fwd(&own, x, h, y, false, sv);
}

void mixer_bwd(const struct mx *c, const struct mixer *x, struct view h, struct view dy, struct view dh, const struct mixer_save *sv)
{
    struct mx own = alone(c, x);
    x->type->bwd(&own, x, h, dy, dh, false, NO_VIEW, sv);
}

/* Forward and backward on a backend that does nothing, as if every parameter were trainable. */
static int dry(const struct mixer *x, const struct backend *like, int64_t rows, int32_t seqs, bool want_dh, size_t *keep_bytes,
               size_t *tmp_bytes, double *flops, struct err *e)
{
    struct backend null;
    struct batch b;
    struct dmem keep, tmp, io;
    struct mixer_save sv = {0};
    struct rope rope = {.rows = 1 << 20};
    rope.cos = rope.sin = (struct view){(void *)(uintptr_t)64, like->stat, (int64_t)1 << 40};
    backend_null(&null, like);
    TRY(batch_fake(&b, &null, rows, seqs, e));
    dmem_measure(&keep, 0);
    dmem_measure(&tmp, 1);
    dmem_measure(&io, 2);
    struct mx c = mixer_ctx(&null, &keep, &tmp, &b);
    c.rope = &rope;
    struct view h = dmem_take(&io, like->act, rows * x->s.d), y = dmem_take(&io, like->act, rows * x->s.d),
                dh = dmem_take(&io, like->act, rows * x->s.d);
    bool was[MIXER_MAX_PARAMS] = {false};
    for (int i = 0; i < MIXER_MAX_PARAMS; i++)
        if (x->p[i]) { /* measured as if all were trainable; put back below */
            was[i] = x->p[i]->trainable;
            x->p[i]->trainable = true;
        }
    mixer_fwd(&c, x, h, y, &sv);
    mixer_bwd(&c, x, h, y, want_dh ? dh : NO_VIEW, &sv);
    for (int i = 0; i < MIXER_MAX_PARAMS; i++)
        if (x->p[i])
            x->p[i]->trainable = was[i];
    *keep_bytes = keep.peak_bytes;
    *tmp_bytes = tmp.peak_bytes;
    *flops = null.flops;
    int rc = be_sync(&null, e);
    batch_close(&b);
    return rc;
}

int mixer_plan(const struct mixer *x, const struct backend *like, int64_t rows, int32_t seqs, size_t *keep_bytes, size_t *tmp_bytes,
               struct err *e)
{
    double flops;
    return dry(x, like, rows, seqs, true, keep_bytes, tmp_bytes, &flops, e);
}

int mixer_flops(const struct mixer *x, const struct backend *like, int64_t T, double *flops, struct err *e)
{
    size_t keep, tmp;
    return dry(x, like, T, 1, false, &keep, &tmp, flops, e);
}
