/* Stage 2. */
#include "dash/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"
#include "core/rng.h"
#include "dash/bilevel.h"
#include "kernels/ops.h"

static const enum mixer_kind order3[] = {MIX_FULL, MIX_WINDOW, MIX_GDN};

void search_gates_init(struct gates *g, const struct search_opts *o, int layers, int64_t T)
{
    *g = (struct gates){.layers = layers};
    for (size_t i = 0; i < ARRAY_LEN(order3); i++) {
        if (order3[i] == MIX_WINDOW && !o->window_op)
            continue;
        g->cost[g->ops] = order3[i] == MIX_FULL ? 1 : order3[i] == MIX_WINDOW ? (double)o->window / (double)T : 0;
        g->kind[g->ops++] = order3[i];
    }
    for (int l = 0; l < layers; l++) {
        g->searched[l] = l > 0 || o->layer0 == LAYER0_SEARCH;
        g->fixed[l] = o->layer0 == LAYER0_LINEAR ? g->ops - 1 : 0;
        for (int k = 0; k < g->ops; k++)
            g->alpha[l][k] = o->alpha_init_std * ctr_normal(o->seed, 0x616c706861ull, (uint64_t)(l * MAX_OPS + k));
    }
}

/* Puts the probabilities of temperature T (hard: one-hot of the argmax) into the model. */
static int set_p(struct model *super, const struct gates *g, double T, bool hard, struct err *e)
{
    for (int l = 0; l < g->layers; l++) {
        double p[MAX_OPS], by_kind[MIX_N_KINDS] = {0};
        unsigned ops = 0;
        gates_p(g, l, T, p);
        int best = gates_argmax(g, l);
        for (int o = 0; o < g->ops; o++) {
            if (!g->searched[l] && o != g->fixed[l])
                continue;
            ops |= MIX_BIT(g->kind[o]);
            by_kind[g->kind[o]] = hard ? o == best : p[o];
        }
        TRY(model_set_ops(super, l, ops, by_kind, 0, e));
    }
    return 0;
}

static int assemble(struct model **out, struct model *teacher, const struct linset *lin, const struct gates *g, int64_t window, bool copy,
                    struct err *e)
{
    unsigned ops[MAX_LAYERS];
    for (int l = 0; l < g->layers; l++) {
        ops[l] = 0;
        for (int o = 0; o < g->ops; o++)
            if (g->searched[l] || o == g->fixed[l])
                ops[l] |= MIX_BIT(g->kind[o]);
        if (l == 0)
            ops[0] |= MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN); /* both are evaluated at the end */
    }
    struct assemble_opts ao = {.ops = ops, .window = window, .copy = copy};
    return model_assemble(out, teacher, lin, &ao, e);
}

int search_supernet(struct model **out, struct model *teacher, const struct linset *lin, const struct gates *g, int64_t window,
                    struct err *e)
{
    return assemble(out, teacher, lin, g, window, false, e);
}

/* With the rows set in the stream already. */
static int gradient(struct model *super, struct acts *acts, struct stream *st, struct gates *g, const int64_t *rows, int n, double lambda,
                    double T, enum relax relax, enum positions pos, double *kl_mean, struct err *e)
{
    double weight = 0, dkl[MAX_LAYERS][MAX_OPS] = {{0}};
    struct kl_sums k = {0};
    struct view hidden, dp = {0};
    int64_t L = super->cfg.L;
    for (int i = 0; i < n; i++)
        weight += stream_weight(st->shard, rows[i], pos);
    double *host = calloc((size_t)(L * MIX_N_KINDS), sizeof *host);
    if (!host)
        return err_nomem(e, (size_t)(L * MIX_N_KINDS) * sizeof *host, "gate gradients");
    struct fwd_opts fo = {.save = true};
    double f0 = st->be->flops;
    int rc = set_p(super, g, T, relax == RELAX_STE, e) || be_view(st->be, st->be->stat, L * MIX_N_KINDS, &dp, e) ||
        model_fwd(super, acts, &st->batch, &fo, &hidden, e);
    st->flops_forward += st->be->flops - f0;
    if (rc == 0)
        rc = stream_kl(st, super, hidden, pos, true, false, weight > 0 ? 1 / weight : 0, &k, e);
    if (rc == 0) {
        struct bwd_opts bo = {.dp = dp};
        rc = model_bwd(super, acts, &st->batch, view_at(st->dh, 0, st->batch.seqs.rows * super->cfg.d), &bo, e) ||
            get_f64(st->be, host, dp, e) || be_sync(st->be, e);
    }
    for (int64_t l = 0; rc == 0 && l < L; l++)
        for (int o = 0; o < g->ops; o++) {
            dkl[l][o] = host[l * MIX_N_KINDS + (int)g->kind[o]];
            if (g->searched[l] && !finite_f64(dkl[l][o]))
                rc = ERR(e, E_NUMERIC, "layer %" PRId64 ": the gradient on operator '%s' is not finite", l, mixer_name(g->kind[o]));
        }
    if (rc == 0)
        gates_backward(g, dkl, lambda, T, 1);
    *kl_mean = pos == POS_ALL ? (k.n_all > 0 ? k.all / k.n_all : 0) : k.n_answers > 0 ? k.answers / k.n_answers : 0;
    be_view_free(st->be, &dp);
    free(host);
    return rc ? -1 : 0;
}

int search_gradient(struct model *super, struct acts *acts, struct stream *st, struct gates *g, const int64_t *rows, int n, double lambda,
                    double T, enum relax relax, enum positions pos, double *kl_mean, struct err *e)
{
    TRY(stream_set(st, rows, n, e));
    return gradient(super, acts, st, g, rows, n, lambda, T, relax, pos, kl_mean, e);
}

/* ---- log and state ---- */

struct searcher { /* one lambda */
    const struct search_opts *o;
    const char *dir;
    double lambda;
    struct gates g;
    struct str log;
    int64_t step, saved, pending, tokens; /* saved: step of state.tsv, -1 = none */
    double grad_norm, flops, flops_forward; /* counted so far */
    struct bilevel weights;               /* open for bilevel only */
};

static void log_step(struct searcher *s, double T, double kl)
{
    struct gate_diag d;
    double p[MAX_OPS];
    gates_diagnose(&s->g, T, &d);
    if (s->log.len == 0) {
        str_puts(&s->log, "step\tT\tkl\tcost\tbudget_soft\tbudget_hard\tentropy\ttop1\tmargin\tambiguous\tgrad_norm");
        for (int l = 0; l < s->g.layers; l++)
            for (int o = 0; s->g.searched[l] && o < s->g.ops; o++)
                str_printf(&s->log, "\tp%d.%s", l, s->g.kind[o] == MIX_GDN ? "linear" : mixer_name(s->g.kind[o]));
        str_puts(&s->log, "\n");
    }
    str_printf(&s->log, "%" PRId64 "\t%.6g\t%.9g\t%.9g\t%.6f\t%.4f\t%.5f\t%.5f\t%.5f\t%d\t%.6g", s->step, T, kl, s->lambda * d.budget_soft,
               d.budget_soft, d.budget_hard, d.entropy, d.top1, d.margin, d.ambiguous, s->grad_norm);
    for (int l = 0; l < s->g.layers; l++) {
        gates_p(&s->g, l, T, p);
        for (int o = 0; s->g.searched[l] && o < s->g.ops; o++)
            str_printf(&s->log, "\t%.5f", p[o]);
    }
    str_puts(&s->log, "\n");
}

static int save_state(struct searcher *s, struct err *e)
{
    char path[1024];
    struct str t = STR_INIT;
    TRY(file_write(path_join(path, s->dir, "log.tsv"), str_c(&s->log), s->log.len, e));
    if (s->weights.be)
        TRY(bilevel_save(&s->weights, s->dir, s->step, e));
    str_printf(&t, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d %a %a\n", s->step, s->pending, s->tokens, s->g.updates,
               s->g.layers, s->g.ops, s->flops, s->flops_forward);
    for (int l = 0; l < s->g.layers; l++)
        for (int o = 0; o < s->g.ops; o++)
            str_printf(&t, "%a %a %a %a\n", s->g.alpha[l][o], s->g.m[l][o], s->g.v[l][o], s->g.grad[l][o]);
    int rc = str_ok(&t, "search state", e) || file_write(path_join(path, s->dir, "state.tsv"), str_c(&t), t.len, e);
    str_free(&t);
    if (rc == 0 && s->weights.be && s->saved >= 0 && s->saved != s->step)
        bilevel_drop(s->dir, s->saved);
    s->saved = s->step;
    return rc ? -1 : 0;
}

static int load_log(struct searcher *s, struct err *e)
{
    char path[1024];
    struct str all = STR_INIT;
    if (!file_exists(path_join(path, s->dir, "log.tsv")))
        return 0;
    TRY(file_read(path, (size_t)256 << 20, &all, e));
    for (const char *p = str_c(&all); *p;) {
        size_t n = strcspn(p, "\n");
        if (p[n] && (p == str_c(&all) || strtoll(p, NULL, 10) <= s->step))
            str_add(&s->log, p, n + 1);
        p += n + (p[n] == '\n');
    }
    str_free(&all);
    return 0;
}

static int load_state(struct searcher *s, struct err *e)
{
    char path[1024];
    struct str t = STR_INIT;
    if (!file_exists(path_join(path, s->dir, "state.tsv")))
        return 0;
    TRY(file_read(path, 1 << 24, &t, e));
    int layers = 0, ops = 0, used = 0;
    long long step, pending, tokens, updates;
    const char *p = str_c(&t);
    double flops, forward;
    bool ok = sscanf(p, "%lld %lld %lld %lld %d %d %la %la\n%n", &step, &pending, &tokens, &updates, &layers, &ops, &flops, &forward,
                     &used) == 8 && layers == s->g.layers && ops == s->g.ops;
    for (int l = 0; ok && l < layers; l++)
        for (int o = 0; ok && o < ops; o++) {
            p += used;
            ok = sscanf(p, "%la %la %la %la\n%n", &s->g.alpha[l][o], &s->g.m[l][o], &s->g.v[l][o], &s->g.grad[l][o], &used) == 4;
        }
    str_free(&t);
    if (!ok)
        return ERR(e, E_INPUT, "'%s' is not the state of this search; remove the run's folder to start again", path);
    s->step = s->saved = step;
    s->flops = flops;
    s->flops_forward = forward;
    s->pending = pending;
    s->tokens = tokens;
    s->g.updates = updates;
    return load_log(s, e);
}

/* ---- the search ---- */

static void scale_grad(struct gates *g, double f)
{
    for (int l = 0; l < g->layers; l++)
        for (int o = 0; o < g->ops; o++)
            g->grad[l][o] *= f;
}

/* The work of all searches on one model. */
struct bench {
    const struct search_opts *o;
    struct model *super;
    struct acts acts;
    struct stream st;
    struct row_order order;
    struct prog bar;
    double others; /* FLOPs that the backend's counter held before, given back at the end */
};

/*
 * What was counted since the last call is this search's (NULL: nobody's). The counters start at nought for every stretch and a stretch
 * counts in whole FLOPs, so that the sum is exact, and the same wherever one process took over from another.
 */
static void bill(struct bench *b, struct searcher *s)
{
    struct backend *be = b->super->be;
    if (s) {
        s->flops += rint(be->flops);
        s->flops_forward += rint(b->st.flops_forward);
    }
    b->others += be->flops;
    be->flops = b->st.flops_forward = 0;
}

static int advance(struct bench *b, struct searcher *s, const int64_t *rows, struct err *e)
{
    const struct search_opts *o = b->o;
    double kl, T = anneal_temperature(o->anneal, s->step, o->steps, o->t_hi, o->t_lo);
    for (int64_t i = 0; i < o->micro; i++)
        s->tokens += b->st.shard->len[rows[i]];
    if (gradient(b->super, &b->acts, &b->st, &s->g, rows, (int)o->micro, s->lambda, T, o->relax, o->positions, &kl, e) != 0)
        return e->code == E_NUMERIC ? err_wrap(e, "search: lambda %g: micro-step %" PRId64 " of %" PRId64, s->lambda, s->step + 1, o->steps)
            : -1;
    if (!finite_f64(kl))
        return ERR(e, E_NUMERIC, "search: lambda %g: micro-step %" PRId64 " of %" PRId64 ": the KL divergence is not finite", s->lambda,
                   s->step + 1, o->steps);
    s->step++;
    s->pending++;
    bool last = s->step == o->steps, update = s->pending == o->accumulate || (last && !o->drop_partial);
    if (s->weights.be) /* at the probabilities that the logits' half just used */
        TRY(bilevel_step(&s->weights, b->super, &b->acts, &b->st, s->step - 1, (int)o->micro, o->positions, update, &s->tokens, e));
    s->grad_norm = 0;
    if (update) {
        scale_grad(&s->g, 1 / (double)s->pending);
        s->grad_norm = gates_update(&s->g, o->lr, o->b1, o->b2, o->eps);
        s->pending = 0;
    }
    log_step(s, T, kl);
    char extra[160];
    snprintf(extra, sizeof extra, "step %" PRId64 "/%" PRId64 "  kl %.4f  budget %.2f  T %.2f", s->step, o->steps, kl,
             gates_budget(&s->g, T), T);
    prog_update(&b->bar, s->tokens, extra);
    bill(b, s);
    return last || interrupted() || (o->ckpt_every && s->step % o->ckpt_every == 0) ? save_state(s, e) : 0;
}

/* One micro-step of the searches that stand at `step`: after a kill between two state files some may be ahead. */
static int micro_step(struct bench *b, struct searcher *s, int n, int64_t step, struct err *e)
{
    int64_t rows[64];
    for (int64_t i = 0; i < b->o->micro; i++)
        rows[i] = order_row(&b->order, step * b->o->micro + i);
    TRY(stream_set(&b->st, rows, (int)b->o->micro, e));
    if (s[0].step != step) /* the teacher's pass is the first search's: paid already */
        bill(b, NULL);
    for (int i = 0; i < n; i++)
        if (s[i].step == step)
            TRY(advance(b, &s[i], rows, e));
    return step + 1 < b->o->steps &&
        interrupted() ? ERR(e, E_INTERRUPTED,
                            "search: interrupted after micro-step %" PRId64 " of %" PRId64 "; run the same command again to go on",
                            step + 1, b->o->steps) : 0;
}

static int hard_eval(struct model *super, struct acts *acts, struct stream *st, const enum mixer_kind *kind, const struct search_opts *o,
                     struct kl_sums *out, struct err *e)
{
    for (int64_t l = 0; l < super->cfg.L; l++)
        TRY(model_set_ops(super, l, MIX_BIT(kind[l]), NULL, 0, e));
    return stream_eval(st, super, acts, st->shard->rows - o->heldout, st->shard->rows, o->micro, out, e);
}

static void make_selection(const struct searcher *s, struct selection *sel)
{
    const struct search_opts *o = s->o;
    *sel = (struct selection){.layers = s->g.layers, .version = 1, .has_p = true, .seed = o->seed, .tokens = s->tokens, .filled = true};
    snprintf(sel->method, sizeof sel->method, "dash-%d", s->g.ops);
    static const char *const relax_words[] = {"", " straight-through", " bilevel"}, *const zero_words[] = {"", "layer0=search",
        "layer0=linear", "layer0=full"};
    snprintf(sel->variant, sizeof sel->variant, "%s%s%s", zero_words[o->layer0], o->positions == POS_ANSWERS ? " positions=answers" : "",
             relax_words[o->relax]);
    for (int l = 0; l < s->g.layers; l++) {
        double p[MAX_OPS];
        gates_p(&s->g, l, o->anneal == ANNEAL_NONE ? o->t_hi : o->t_lo, p);
        for (int k = 0; k < s->g.ops; k++)
            sel->p[l][s->g.kind[k]] = p[k];
        sel->kind[l] = s->g.kind[gates_argmax(&s->g, l)];
    }
    if (o->layer0 == LAYER0_PAPER)
        sel->kind[0] = MIX_GDN;
}

static int finish(struct bench *b, struct searcher *s, struct search_result *out, struct err *e)
{
    const struct search_opts *o = s->o;
    struct model *super = b->super;
    struct acts *acts = &b->acts;
    struct stream *st = &b->st;
    double T = o->anneal == ANNEAL_NONE ? o->t_hi : o->t_lo;
    int64_t rows = st->shard->rows;
    enum mixer_kind kind[MAX_LAYERS];
    make_selection(s, &out->sel);
    gates_diagnose(&s->g, T, &out->diag);
    gates_diagnose(&s->g, 1, &out->diag_t1);
    double wcost = o->window_op ? s->g.cost[1] : 0;
    out->sel.budget = layers_budget(out->sel.kind, out->sel.layers, wcost);
    TRY(set_p(super, &s->g, T, false, e));
    TRY(stream_eval(st, super, acts, rows - o->heldout, rows, o->micro, &out->soft, e));
    memcpy(kind, out->sel.kind, sizeof kind);
    if (o->layer0 == LAYER0_PAPER)
        kind[0] = MIX_FULL;
    TRY(hard_eval(super, acts, st, kind, o, &out->argmax_full0, e));
    TRY(hard_eval(super, acts, st, out->sel.kind, o, &out->argmax, e));
    bill(b, s);
    out->tokens = s->tokens;
    out->flops = s->flops;
    out->flops_forward = out->sel.flops_forward = s->flops_forward;
    out->sel.flops_backward = s->flops - s->flops_forward;
    return 0;
}

static int check_opts(const struct search_opts *o, const struct shard *data, struct err *e)
{
    if (o->micro < 1 || o->micro > 64 || o->accumulate < 1 || o->steps < 1)
        return ERR(e, E_USAGE, "search: micro-batch %" PRId64 " (1..64), accumulation %" PRId64 " and steps %" PRId64 " must be positive",
                   o->micro, o->accumulate, o->steps);
    if (o->heldout < 1 || o->row_lo < 0 || o->row_hi > data->rows - o->heldout || o->row_lo >= o->row_hi)
        return ERR(e, E_USAGE, "search: rows %" PRId64 "..%" PRId64 " must lie before the %" PRId64 " held-out rows of %" PRId64, o->row_lo,
                   o->row_hi, o->heldout, data->rows);
    if (o->t_hi <= 0 || o->t_lo <= 0)
        return ERR(e, E_USAGE, "search: temperatures %g and %g must be positive", o->t_hi, o->t_lo);
    if (o->relax == RELAX_BILEVEL && (o->row_hi - o->row_lo < 2 || !(o->lr_weights >= 0)))
        return ERR(e, E_USAGE, "search: bilevel needs at least two rows and a learning rate of the weights that is not negative (%g)",
                   o->lr_weights);
    if (o->window_op && (o->window < 1 || o->window >= data->seq))
        return ERR(e, E_USAGE, "search: window %" PRId64 " must be in 1..%" PRId64 " (the rows' length less 1)", o->window, data->seq - 1);
    return 0;
}

static int open_bench(struct bench *b, struct searcher *s, struct model *teacher, const struct linset *lin, const struct shard *data,
                      const struct hcache *cache, struct err *e)
{
    const struct search_opts *o = b->o;
    bool bilevel = o->relax == RELAX_BILEVEL;
    // bilevel: the first half is the logits', the second the weights'
    int64_t mid = bilevel ? o->row_lo + (o->row_hi - o->row_lo) / 2 : o->row_hi;
    struct acts_opts ao = {.rows = o->micro * data->seq, .seqs = (int32_t)o->micro, .train = true, .wgrad = bilevel,
                           .recompute = o->recompute};
    TRY(assemble(&b->super, teacher, lin, &s->g, o->window, bilevel, e));
    TRY(set_p(b->super, &s->g, 1, false, e));
    TRY(acts_open(&b->acts, b->super, &ao, e));
    TRY(stream_open(&b->st, teacher->be, data, teacher, cache, o->micro, o->tau, e));
    TRY(order_init(&b->order, o->seed, o->row_lo, mid, e));
    if (bilevel)
        TRY(bilevel_open(&s->weights, b->super, o->lr_weights, o->seed, mid, o->row_hi, e));
    return bilevel && s->step > 0 ? bilevel_load(&s->weights, s->dir, s->step, e) : 0;
}

static void close_bench(struct bench *b)
{
    if (b->order.perm)
        order_free(&b->order);
    stream_close(&b->st);
    if (b->acts.layer)
        acts_close(&b->acts);
    if (b->super)
        model_close(b->super);
}

static int open_searchers(struct searcher *s, const struct search_opts *o, const double *lambda, int n, const char *const *dir, int layers,
                          int64_t seq, struct err *e)
{
    for (int i = 0; i < n; i++) {
        s[i] = (struct searcher){.o = o, .dir = dir[i], .lambda = lambda[i], .saved = -1};
        if (!(lambda[i] >= 0))
            return ERR(e, E_USAGE, "search: lambda %g is negative", lambda[i]);
        search_gates_init(&s[i].g, o, layers, seq);
        TRY(mkdir_p(dir[i], e));
        TRY(load_state(&s[i], e));
    }
    return 0;
}

static int64_t lowest_step(const struct searcher *s, int n)
{
    int64_t step = s[0].step;
    for (int i = 1; i < n; i++)
        step = MIN(step, s[i].step);
    return step;
}

int search_sweep(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
                 const struct search_opts *o, const double *lambda, int n, const char *const *dir, struct search_result *out, struct err *e)
{
    struct bench b = {.o = o};
    memset(out, 0, sizeof *out * (size_t)n);
    TRY(check_opts(o, data, e));
    if (n < 1 || (n > 1 && o->relax == RELAX_BILEVEL))
        return ERR(e, E_USAGE, "search: %d values of lambda at once (at least 1; a bilevel search changes weights, so it takes one)", n);
    struct searcher *s = calloc((size_t)n, sizeof *s);
    if (!s)
        return err_nomem(e, (size_t)n * sizeof *s, "searches");
    int rc = open_searchers(s, o, lambda, n, dir, (int)teacher->cfg.L, data->seq, e) || open_bench(&b, s, teacher, lin, data, cache, e);
    prog_start(&b.bar, "search", "tok", o->steps * o->micro * data->seq * (o->relax == RELAX_BILEVEL ? 2 : 1));
    if (rc == 0)
        bill(&b, NULL);
    for (int64_t step; rc == 0 && (step = lowest_step(s, n)) < o->steps;)
        rc = micro_step(&b, s, n, step, e);
    prog_end(&b.bar);
    for (int i = 0; rc == 0 && i < n; i++)
        rc = finish(&b, &s[i], &out[i], e);
    for (int i = 0; i < n; i++) {
        bilevel_close(&s[i].weights);
        str_free(&s[i].log);
    }
    free(s);
    teacher->be->flops += b.others;
    close_bench(&b);
    return rc ? -1 : 0;
}

int search_run(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
               const struct search_opts *o, const char *dir, struct search_result *out, struct err *e)
{
    return search_sweep(teacher, lin, data, cache, o, &o->lambda, 1, &dir, out, e);
}
