/* Whole-model forward and backward, and the memory they need. */
#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "kernels/step.h"
#include "model/model_int.h"

/* ---- forward ---- */

static struct mx layer_ctx(const struct run *r, const struct layer *y, bool save, bool wgrad)
{
    struct mx c = {.be = r->be,
                   .keep = &r->a->keep,
                   .tmp = &r->a->tmp,
                   .seqs = &r->b->seqs,
                   .pos = r->b->pos,
                   .rope = r->m->rope,
                   .save = save,
                   .wgrad = wgrad,
                   .ops = y->ops,
                   .scaled = (y->ops & (y->ops - 1)) != 0,
                   .rows = r->rows,
                   .slot0 = r->slot0};
    for (int k = 0; k < MIX_N_KINDS; k++)
        c.p[k] = y->p[k];
    return c;
}

/* The same context, restricted to one mixer's operators. */
static struct mx part(const struct mx *c, const struct mixer *x)
{
    struct mx own = *c;
    own.ops = c->ops & x->type->kinds;
    return own;
}

static bool runs(const struct mx *c, const struct mixer *x)
{
    return x && (c->ops & x->type->kinds);
}

static void mixers_fwd(const struct run *r, struct mx *c, int64_t l, struct view h, struct view y, bool add, struct layer_save *sv)
{
    const struct layer *lay = &r->m->layer[l];
    if (runs(c, lay->attn) && runs(c, lay->lin)) { /* two readers */
        h = mx_normed(c, h);
        c->norm.w = NO_VIEW;
    }
    for (int i = 0; i < 2; i++) {
        const struct mixer *x = i ? lay->lin : lay->attn;
        if (!runs(c, x))
            continue;
        struct mx own = part(c, x);
        if (r->cache)
            x->type->step(&own, x, h, y, add, i ? &r->cache->lin[l] : &r->cache->attn[l]);
        else
            x->type->fwd(&own, x, h, y, add, !sv ? NULL : i ? &sv->lin : &sv->attn);
        add = true;
    }
}

static void add_rows(struct backend *be, struct view y, struct view a, struct view b)
{
    be_mix(be, &(struct op_mix){.y = y, .x = {a, b}, .p = {1, 1}, .count = 2, .n = y.n});
}

static void norm_rows(const struct run *r, struct view y, struct view rstd, struct view x, const struct param *w)
{
    be_rmsnorm(r->be, &(struct op_rmsnorm){
                          .y = y, .rstd = rstd, .x = x, .w = w->w, .rows = r->b->seqs.rows, .dim = r->m->cfg.d, .eps = r->m->cfg.eps});
}

/* x -> u = x + mixer(norm x) -> out = u + ffn(norm u) */
static void layer_fwd(const struct run *r, int64_t l, struct view x, struct view u, struct view out, const struct fwd_opts *o,
                      struct layer_save *sv)
{
    struct acts *a = r->a;
    size_t mark = dmem_mark(&a->tmp);
    const struct layer *lay = &r->m->layer[l];
    struct mx c = layer_ctx(r, lay, o->save, false);
    struct view h = dmem_take(&a->tmp, r->be->act, x.n), y = dmem_take(&a->tmp, r->be->act, x.n);
    if (o->save) {
        sv->x = x;
        sv->u = u;
        sv->rstd1 = dmem_take(&a->keep, r->be->stat, r->b->seqs.rows);
        sv->rstd2 = dmem_take(&a->keep, r->be->stat, r->b->seqs.rows);
    }
    norm_rows(r, h, o->save ? sv->rstd1 : NO_VIEW, x, lay->norm1);
    if (o->ablate && o->ablate[l])
        be_zero(r->be, y);
    else
        mixers_fwd(r, &c, l, h, y, false, sv);
    if (o->on_mixer)
        o->on_mixer(o->ctx, l, h, y);
    add_rows(r->be, u, x, y);
    norm_rows(r, h, o->save ? sv->rstd2 : NO_VIEW, u, lay->norm2);
    lay->ffn.type->fwd(&c, &lay->ffn, h, y, false, o->save ? &sv->ffn : NULL);
    add_rows(r->be, out, u, y);
    dmem_release(&a->tmp, mark);
}

/* The same while decoding, to x; u is memory. Norms are left to the products that follow them, and sums, where that is free, to those
 * before. */
static void layer_step(const struct run *r, int64_t l, struct view x, struct view u, const struct fwd_opts *o)
{
    struct acts *a = r->a;
    size_t mark = dmem_mark(&a->tmp);
    const struct layer *lay = &r->m->layer[l];
    struct mx c = layer_ctx(r, lay, false, false);
    const bool in_place = be_adds_in_place(r->be, r->b->seqs.rows), ablated = o->ablate && o->ablate[l];
    struct view h = dmem_take(&a->tmp, r->be->act, x.n), y = in_place ? x : dmem_take(&a->tmp, r->be->act, x.n);
    if (in_place)
        u = x;
    c.norm = (struct step_norm){.w = lay->norm1->w, .h = h, .eps = r->m->cfg.eps};
    if (!ablated)
        mixers_fwd(r, &c, l, x, y, in_place, NULL);
    else if (!in_place)
        be_zero(r->be, y);
    if (!in_place)
        add_rows(r->be, u, x, y);
    c.norm.w = lay->norm2->w;
    lay->ffn.type->fwd(&c, &lay->ffn, u, y, in_place, NULL);
    if (!in_place)
        add_rows(r->be, x, u, y);
    dmem_release(&a->tmp, mark);
}

static void model_run_step(const struct run *r, const struct fwd_opts *o, struct view x)
{
    struct acts *a = r->a;
    struct view u = dmem_take(&a->keep, r->be->act, x.n);
    for (int64_t l = 0; l < r->m->cfg.L; l++)
        layer_step(r, l, x, u, o);
    a->x_last = x;
    a->rstd_last = NO_VIEW;
    a->hidden = dmem_take(&a->keep, r->be->act, x.n);
    norm_rows(r, a->hidden, NO_VIEW, x, r->m->norm);
}

void acts_reset(struct acts *a)
{
    a->keep.used_bytes = a->tmp.used_bytes = 0;
}

void model_run_fwd(const struct run *r, const struct fwd_opts *o, struct view *hidden)
{
    struct acts *a = r->a;
    const struct mcfg *cfg = &r->m->cfg;
    int64_t rows = r->b->seqs.rows, n = rows * cfg->d;
    a->saved = o->save;
    a->first = o->x0.p ? o->first : 0;
    struct view x = o->x0, u = NO_VIEW, out = NO_VIEW;
    if (!x.p) {
        x = dmem_take(&a->keep, r->be->act, n);
        be_embed(r->be, &(struct op_embed){.y = x, .w = r->m->embed->w, .ids = r->b->ids, .rows = rows, .vocab = cfg->N, .dim = cfg->d});
    }
    if (r->cache && !o->save && !o->x0.p && !o->on_mixer && !o->on_stream) {
        model_run_step(r, o, x);
        *hidden = a->hidden;
        return;
    }
    if (!o->save) {
        u = dmem_take(&a->keep, r->be->act, n);
        out = o->x0.p ? dmem_take(&a->keep, r->be->act, n) : x; /* the caller's stream is not overwritten */
    }
    if (o->on_stream)
        o->on_stream(o->ctx, a->first, x);
    for (int64_t l = a->first; l < cfg->L; l++) {
        if (o->save)
            out = dmem_take(&a->keep, r->be->act, n);
        size_t mark = dmem_mark(&a->keep);
        if (o->save)
            u = dmem_take(&a->keep, r->be->act, n);
        layer_fwd(r, l, x, u, out, o, o->save ? &a->layer[l] : NULL);
        if (o->save && a->recompute) { /* it comes again in the backward: the same op calls, so the same bits */
            a->layer[l] = (struct layer_save){.x = x};
            dmem_release(&a->keep, mark);
        }
        x = out;
        if (o->on_stream)
            o->on_stream(o->ctx, l + 1, x);
    }
    a->x_last = x;
    a->rstd_last = o->save ? dmem_take(&a->keep, r->be->stat, rows) : NO_VIEW;
    a->hidden = dmem_take(&a->keep, r->be->act, n);
    norm_rows(r, a->hidden, a->rstd_last, x, r->m->norm);
    *hidden = a->hidden;
}

static int check_batch(const struct model *m, const struct acts *a, const struct batch *b)
{
    if (b->seqs.rows > a->max_rows || b->seqs.n > a->max_seqs || a->L != m->cfg.L)
        BUG("batch of %d sequences, %" PRId64 " rows on activations for %d, %" PRId64 " (%" PRId64 " layers for %" PRId64 ")",
            (int)b->seqs.n, b->seqs.rows, (int)a->max_seqs, a->max_rows, a->L, m->cfg.L);
    return 0;
}

int model_fwd(struct model *m, struct acts *a, const struct batch *b, const struct fwd_opts *o, struct view *hidden, struct err *e)
{
    static const struct fwd_opts plain = {0};
    struct run r = {.be = m->be, .m = m, .a = a, .b = b};
    o = o ? o : &plain;
    check_batch(m, a, b);
    if (o->save && o->ablate)
        BUG("a forward with ablated layers has no backward");
    int32_t last = 0;
    for (int64_t i = 0; i < b->seqs.rows; i++)
        last = MAX(last, b->h_pos[i]);
    TRY(model_need_pos(m, (int64_t)last + 1, e));
    acts_reset(a);
    model_run_fwd(&r, o, hidden);
    if (m->be->failed)
        return be_sync(m->be, e);
    return 0;
}

/* ---- backward ---- */

static bool mixer_wants(const struct mx *c, const struct mixer *x)
{
    if (!runs(c, x))
        return false;
    for (int i = 0; i < MIXER_MAX_PARAMS; i++)
        if (param_wants(x->p[i], c->wgrad))
            return true;
    return false;
}

static bool layer_wants(const struct run *r, int64_t l, const struct bwd_opts *o)
{
    const struct layer *lay = &r->m->layer[l];
    struct mx c = layer_ctx(r, lay, true, o->wgrad);
    return (o->dp.p && c.scaled) || param_wants(lay->norm1, o->wgrad) || param_wants(lay->norm2, o->wgrad) || mixer_wants(&c, lay->attn) ||
           mixer_wants(&c, lay->lin) || ffn_wants(&lay->ffn, o->wgrad);
}

static struct view grad_of(const struct run *r, const struct param *p, bool wgrad)
{
    return param_wants(p, wgrad) ? param_grad(r->be, p) : NO_VIEW;
}

/* dx (=, += when add) and the norm's gradient from dy. */
static void norm_bwd(const struct run *r, struct view dx, bool add, struct view dy, struct view x, struct view rstd, const struct param *w,
                     bool wgrad)
{
    be_rmsnorm_bwd(r->be, &(struct op_rmsnorm_bwd){.dx = dx,
                                                   .dw = grad_of(r, w, wgrad),
                                                   .dy = dy,
                                                   .x = x,
                                                   .w = w->w,
                                                   .rstd = rstd,
                                                   .rows = r->b->seqs.rows,
                                                   .dim = r->m->cfg.d,
                                                   .dx_add = add});
}

static struct view normed_again(const struct run *r, struct view x, const struct param *w)
{
    struct view h = dmem_take(&r->a->tmp, r->be->act, x.n);
    norm_rows(r, h, NO_VIEW, x, w);
    return h;
}

static void ffn_bwd(const struct run *r, int64_t l, struct view dx, const struct mx *c)
{
    const struct layer *lay = &r->m->layer[l];
    const struct layer_save *sv = &r->a->layer[l];
    size_t mark = dmem_mark(&r->a->tmp);
    struct view dh = dmem_take(&r->a->tmp, r->be->act, dx.n),
                h = ffn_wants(&lay->ffn, c->wgrad) ? normed_again(r, sv->u, lay->norm2) : NO_VIEW;
    lay->ffn.type->bwd(c, &lay->ffn, h, dx, dh, &sv->ffn);
    norm_bwd(r, dx, true, dh, sv->u, sv->rstd2, lay->norm2, c->wgrad);
    dmem_release(&r->a->tmp, mark);
}

/* Brings dx from layer l's output to its input. *zero: dx is known to be zero. below: something further down needs it. */
static void layer_bwd(const struct run *r, int64_t l, struct view dx, bool *zero, bool below, const struct bwd_opts *o)
{
    const struct layer *lay = &r->m->layer[l];
    struct layer_save *sv = &r->a->layer[l];
    struct mx c = layer_ctx(r, lay, true, o->wgrad);
    if (!*zero)
        ffn_bwd(r, l, dx, &c);
    size_t mark = dmem_mark(&r->a->tmp);
    struct view dmix = dx;
    bool nothing = *zero;
    if (o->inject) {
        struct view extra = dmem_take(&r->a->tmp, r->be->act, dx.n);
        if (o->inject(o->ctx, l, extra)) {
            if (!*zero)
                be_axpby(r->be, &(struct op_axpby){.y = extra, .x = dx, .a = 1, .b = 1, .n = dx.n});
            dmix = extra;
            nothing = false;
        }
    }
    if (!nothing) {
        bool wants = mixer_wants(&c, lay->attn) || mixer_wants(&c, lay->lin), add = false,
             need_dh = below || param_wants(lay->norm1, o->wgrad);
        struct view h = wants ? normed_again(r, sv->x, lay->norm1) : NO_VIEW,
                    dh = need_dh ? dmem_take(&r->a->tmp, r->be->act, dx.n) : NO_VIEW;
        struct view dp = o->dp.p && c.scaled ? view_at(o->dp, l * MIX_N_KINDS, MIX_N_KINDS) : NO_VIEW;
        for (int i = 0; i < 2; i++) {
            const struct mixer *x = i ? lay->lin : lay->attn;
            if (!runs(&c, x))
                continue;
            struct mx own = part(&c, x);
            x->type->bwd(&own, x, h, dmix, dh, add, dp, i ? &sv->lin : &sv->attn);
            add = true;
        }
        if (need_dh)
            norm_bwd(r, dx, !*zero, dh, sv->x, sv->rstd1, lay->norm1, o->wgrad);
        *zero = *zero && !need_dh;
    }
    dmem_release(&r->a->tmp, mark);
}

/* What the forward did not keep of layer l; it stands behind the streams until the layer's backward is done. The output goes where it is.
 */
static void layer_again(const struct run *r, int64_t l, struct view out)
{
    static const struct fwd_opts again = {.save = true};
    struct acts *a = r->a;
    double flops = r->be->flops, bytes = r->be->bytes;
    struct view x = a->layer[l].x, u = dmem_take(&a->keep, r->be->act, x.n);
    layer_fwd(r, l, x, u, out, &again, &a->layer[l]);
    r->be->flops = flops;
    r->be->bytes = bytes;
}

void model_run_bwd(const struct run *r, struct view dhidden, const struct bwd_opts *o)
{
    struct acts *a = r->a;
    const struct mcfg *cfg = &r->m->cfg;
    int64_t n = r->b->seqs.rows * cfg->d, lowest = cfg->L;
    bool embed = param_wants(r->m->embed, o->wgrad), zero = !dhidden.p;
    for (int64_t l = cfg->L - 1; l >= a->first; l--)
        if (layer_wants(r, l, o))
            lowest = l;
    if (embed)
        lowest = a->first;
    if (lowest == cfg->L && !param_wants(r->m->norm, o->wgrad))
        return;
    a->tmp.used_bytes = 0;
    struct view dx = dmem_take(&a->tmp, r->be->act, n);
    if (!zero)
        norm_bwd(r, dx, false, dhidden, a->x_last, a->rstd_last, r->m->norm, o->wgrad);
    for (int64_t l = cfg->L - 1; l >= lowest; l--) {
        size_t mark = dmem_mark(&a->keep);
        if (a->recompute && !(zero && !o->inject)) /* nothing has come to this layer yet: its backward does nothing */
            layer_again(r, l, l + 1 < cfg->L ? a->layer[l + 1].x : a->x_last);
        layer_bwd(r, l, dx, &zero, embed || l > lowest, o);
        dmem_release(&a->keep, mark);
    }
    if (embed && !zero)
        be_embed_bwd(
            r->be,
            &(struct op_embed_bwd){
                .dw = param_grad(r->be, r->m->embed), .dy = dx, .ids = r->b->ids, .rows = r->b->seqs.rows, .vocab = cfg->N, .dim = cfg->d});
}

int model_bwd(struct model *m, struct acts *a, const struct batch *b, struct view dhidden, const struct bwd_opts *o, struct err *e)
{
    struct run r = {.be = m->be, .m = m, .a = a, .b = b};
    check_batch(m, a, b);
    if (!a->saved)
        BUG("backward without a saving forward");
    if (a->first > 0 && param_wants(m->embed, o->wgrad))
        BUG("the embedding cannot be trained when the forward begins at layer %" PRId64, a->first);
    model_run_bwd(&r, dhidden, o);
    if (m->be->failed)
        return be_sync(m->be, e);
    return 0;
}

/* ---- memory and FLOPs by a dry run ---- */

static bool dry_inject(void *ctx, int64_t l, struct view dy)
{
    UNUSED(ctx);
    UNUSED(l);
    UNUSED(dy);
    return true;
}

struct dry {
    struct backend be;
    struct acts a;
    struct batch b;
    struct layer_save *save;
};

static int dry_open(struct dry *d, const struct model *m, int64_t rows, int32_t seqs, struct err *e)
{
    *d = (struct dry){0};
    backend_null(&d->be, m->be);
    d->save = calloc((size_t)m->cfg.L, sizeof *d->save);
    if (!d->save)
        return err_nomem(e, (size_t)m->cfg.L * sizeof *d->save, "a plan");
    d->a.layer = d->save;
    dmem_measure(&d->a.keep, 0);
    dmem_measure(&d->a.tmp, 1);
    return batch_fake(&d->b, &d->be, rows, seqs, e);
}

static void dry_close(struct dry *d)
{
    free(d->save);
    batch_close(&d->b);
}

/* The model is only read: the null backend touches nothing. */
static struct run dry_run(struct dry *d, const struct model *m)
{
    return (struct run){.be = &d->be, .m = (struct model *)(uintptr_t)m, .a = &d->a, .b = &d->b};
}

static void dry_bwd(struct dry *d, const struct model *m, bool wgrad, bool inject)
{
    struct run r = dry_run(d, m);
    struct bwd_opts o = {
        .wgrad = wgrad, .dp = {(void *)(uintptr_t)1024, d->be.stat, m->cfg.L * MIX_N_KINDS}, .inject = inject ? dry_inject : NULL};
    model_run_bwd(&r, d->a.hidden, &o);
}

/* Decoding against caches that already hold more than any window. */
static int dry_step(struct dry *d, const struct model *m, int32_t seqs, struct err *e)
{
    struct cache c = {.m = m, .be = &d->be, .slots = seqs};
    size_t L = (size_t)m->cfg.L;
    int64_t past = 1;
    for (int64_t l = 0; l < m->cfg.L; l++)
        past = MAX(past, m->cfg.window[l]);
    c.capacity = past + d->b.seqs.rows;
    c.attn = calloc(L, sizeof *c.attn);
    c.lin = calloc(L, sizeof *c.lin);
    c.len = calloc((size_t)seqs, sizeof *c.len);
    struct host_idx h = {0};
    struct cache_rows rows;
    int rc = c.attn && c.lin && c.len ? 0 : err_nomem(e, L * sizeof *c.attn, "a plan");
    for (int64_t l = 0; rc == 0 && l < m->cfg.L; l++)
        for (int i = 0; i < MIXER_MAX_STATE; i++) { /* addresses that nobody touches, of any size */
            c.attn[l].v[i] = (struct view){(void *)((uintptr_t)(40 + i) << 50), d->be.act, (int64_t)1 << 45};
            c.lin[l].v[i] = (struct view){(void *)((uintptr_t)(50 + i) << 50), i == 0 ? d->be.stat : d->be.act, (int64_t)1 << 45};
            c.lin[l].elems[i] = 1 << 24;
        }
    for (int32_t i = 0; rc == 0 && i < seqs; i++)
        c.len[i] = past;
    acts_reset(&d->a);
    if (rc == 0)
        rc = cache_plan_rows(&rows, &c, 0, &d->b.seqs, &d->be, &d->a.keep, &h, e);
    if (rc == 0) {
        struct run r = dry_run(d, m);
        struct view hidden;
        r.cache = &c;
        r.rows = &rows;
        model_run_fwd(&r, &(struct fwd_opts){0}, &hidden);
    }
    free(h.p);
    free(c.attn);
    free(c.lin);
    free(c.len);
    return rc;
}

/* Measured as if every parameter were trainable: what is will often be decided later. The flags are put back. */
static int dry_train(struct dry *d, const struct model *m, bool wgrad, struct err *e)
{
    struct run r = dry_run(d, m);
    struct view hidden;
    bool *was = calloc(m->params.n + 1, sizeof *was);
    if (!was)
        return err_nomem(e, m->params.n, "a plan");
    for (size_t i = 0; i < m->params.n; i++) {
        was[i] = m->params.v[i]->trainable;
        m->params.v[i]->trainable = true;
    }
    model_run_fwd(&r, &(struct fwd_opts){.save = true}, &hidden);
    dry_bwd(d, m, wgrad, true);
    for (size_t i = 0; i < m->params.n; i++)
        m->params.v[i]->trainable = was[i];
    free(was);
    return 0;
}

int acts_plan(const struct model *m, const struct acts_opts *o, size_t *keep_bytes, size_t *tmp_bytes, struct err *e)
{
    struct dry d;
    struct view hidden;
    if (o->rows < 1 || o->seqs < 1 || o->seqs > o->rows)
        BUG("activations for %d sequences in %" PRId64 " rows", (int)o->seqs, o->rows);
    int rc = dry_open(&d, m, o->rows, o->seqs, e);
    d.a.recompute = o->recompute;
    if (rc == 0) {
        struct run r = dry_run(&d, m);
        model_run_fwd(&r, &(struct fwd_opts){0}, &hidden);
        acts_reset(&d.a);
        rc = o->train ? dry_train(&d, m, o->wgrad, e) : dry_step(&d, m, o->seqs, e);
        *keep_bytes = d.a.keep.peak_bytes;
        *tmp_bytes = d.a.tmp.peak_bytes;
    }
    if (rc == 0)
        rc = be_sync(&d.be, e);
    dry_close(&d);
    return rc;
}

int acts_open(struct acts *a, const struct model *m, const struct acts_opts *o, struct err *e)
{
    size_t keep, tmp;
    *a = (struct acts){.max_rows = o->rows, .max_seqs = o->seqs, .L = m->cfg.L, .recompute = o->recompute};
    TRY(acts_plan(m, o, &keep, &tmp, e));
    a->layer = calloc((size_t)m->cfg.L, sizeof *a->layer);
    if (!a->layer)
        return err_nomem(e, (size_t)m->cfg.L * sizeof *a->layer, "activations");
    if (dmem_open(&a->keep, m->be, keep, e) != 0 || dmem_open(&a->tmp, m->be, tmp, e) != 0) {
        acts_close(a);
        return err_wrap(e, "activations of %.1f MiB for %" PRId64 " rows", (double)(keep + tmp) / 1048576.0, o->rows);
    }
    return 0;
}

void acts_close(struct acts *a)
{
    dmem_close(&a->keep);
    dmem_close(&a->tmp);
    free(a->layer);
    *a = (struct acts){0};
}

int model_flops(const struct model *m, int32_t n, int64_t T, bool backward, bool wgrad, double *flops, struct err *e)
{
    struct dry d;
    struct view hidden;
    int rc = dry_open(&d, m, n * T, n, e);
    if (rc == 0) {
        int32_t *off = d.b.h_mem + 2 * d.b.max_rows;
        for (int32_t i = 0; i <= n; i++)
            off[i] = (int32_t)(i * T);
        struct run r = dry_run(&d, m);
        model_run_fwd(&r, &(struct fwd_opts){.save = true}, &hidden);
        if (backward)
            dry_bwd(&d, m, wgrad, false);
        *flops = d.be.flops;
        rc = be_sync(&d.be, e);
    }
    dry_close(&d);
    return rc;
}
