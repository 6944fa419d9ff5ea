/* Stage 2. */
#include "dash/search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/log.h"
#include "core/prog.h"
#include "core/prov.h"
#include "core/rng.h"
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

int search_supernet(struct model **out, struct model *teacher, const struct linset *lin, const struct gates *g, int64_t window, struct err *e)
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
    struct assemble_opts ao = {.ops = ops, .window = window, .copy = false};
    return model_assemble(out, teacher, lin, &ao, e);
}

int search_gradient(struct model *super, struct acts *acts, struct stream *st, struct gates *g, const int64_t *rows, int n, double lambda, double T, enum relax relax, enum positions pos,
                    double *kl_mean, struct err *e)
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
    int rc = set_p(super, g, T, relax == RELAX_STE, e) || be_view(st->be, st->be->stat, L * MIX_N_KINDS, &dp, e) || stream_set(st, rows, n, e) ||
             model_fwd(super, acts, &st->batch, &fo, &hidden, e) || stream_kl(st, super, hidden, pos, true, false, weight > 0 ? 1 / weight : 0, &k, e);
    if (rc == 0) {
        struct bwd_opts bo = {.dp = dp};
        rc = model_bwd(super, acts, &st->batch, view_at(st->dh, 0, st->batch.seqs.rows * super->cfg.d), &bo, e) || get_f64(st->be, host, dp, e) || be_sync(st->be, e);
    }
    for (int64_t l = 0; rc == 0 && l < L; l++)
        for (int o = 0; o < g->ops; o++) {
            dkl[l][o] = host[l * MIX_N_KINDS + (int)g->kind[o]];
            if (g->searched[l] && !finite_f64(dkl[l][o]))
                rc = ERR(e, E_NUMERIC, "search: layer %" PRId64 ": the gradient on operator '%s' is not finite", l, mixer_name(g->kind[o]));
        }
    if (rc == 0)
        gates_backward(g, dkl, lambda, T, 1);
    *kl_mean = pos == POS_ALL ? (k.n_all > 0 ? k.all / k.n_all : 0) : k.n_answers > 0 ? k.answers / k.n_answers : 0;
    be_view_free(st->be, &dp);
    free(host);
    return rc ? -1 : 0;
}

/* ---- log and state ---- */

struct searcher {
    const struct search_opts *o;
    const char *dir;
    struct gates g;
    struct str log;
    int64_t step, pending, tokens;
    double grad_norm;
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
    str_printf(&s->log, "%" PRId64 "\t%.6g\t%.9g\t%.9g\t%.6f\t%.4f\t%.5f\t%.5f\t%.5f\t%d\t%.6g", s->step, T, kl, s->o->lambda * d.budget_soft, d.budget_soft, d.budget_hard, d.entropy, d.top1, d.margin,
               d.ambiguous, s->grad_norm);
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
    str_printf(&t, "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d\n", s->step, s->pending, s->tokens, s->g.updates, s->g.layers, s->g.ops);
    for (int l = 0; l < s->g.layers; l++)
        for (int o = 0; o < s->g.ops; o++)
            str_printf(&t, "%a %a %a %a\n", s->g.alpha[l][o], s->g.m[l][o], s->g.v[l][o], s->g.grad[l][o]);
    int rc = str_ok(&t, "search state", e) || file_write(path_join(path, s->dir, "state.tsv"), str_c(&t), t.len, e);
    str_free(&t);
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
    bool ok = sscanf(p, "%lld %lld %lld %lld %d %d\n%n", &step, &pending, &tokens, &updates, &layers, &ops, &used) == 6 && layers == s->g.layers && ops == s->g.ops;
    for (int l = 0; ok && l < layers; l++)
        for (int o = 0; ok && o < ops; o++) {
            p += used;
            ok = sscanf(p, "%la %la %la %la\n%n", &s->g.alpha[l][o], &s->g.m[l][o], &s->g.v[l][o], &s->g.grad[l][o], &used) == 4;
        }
    str_free(&t);
    if (!ok)
        return ERR(e, E_INPUT, "'%s' is not the state of this search; remove the run's folder to start again", path);
    s->step = step;
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

static int micro_step(struct searcher *s, struct model *super, struct acts *acts, struct stream *st, struct row_order *order, struct prog *bar, struct err *e)
{
    const struct search_opts *o = s->o;
    int64_t rows[64];
    double kl, T = anneal_temperature(o->anneal, s->step, o->steps, o->t_hi, o->t_lo);
    for (int64_t i = 0; i < o->micro; i++) {
        rows[i] = order_row(order, s->step * o->micro + i);
        s->tokens += st->shard->len[rows[i]];
    }
    TRY(search_gradient(super, acts, st, &s->g, rows, (int)o->micro, o->lambda, T, o->relax, o->positions, &kl, e));
    if (!finite_f64(kl))
        return ERR(e, E_NUMERIC, "search: micro-step %" PRId64 " of %" PRId64 ": the KL divergence is not finite", s->step + 1, o->steps);
    s->step++;
    s->pending++;
    bool last = s->step == o->steps;
    s->grad_norm = 0;
    if (s->pending == o->accumulate || (last && !o->drop_partial)) {
        scale_grad(&s->g, 1 / (double)s->pending);
        s->grad_norm = gates_update(&s->g, o->lr, o->b1, o->b2, o->eps);
        s->pending = 0;
    }
    log_step(s, T, kl);
    char extra[160];
    snprintf(extra, sizeof extra, "step %" PRId64 "/%" PRId64 "  kl %.4f  budget %.2f  T %.2f", s->step, o->steps, kl, gates_budget(&s->g, T), T);
    prog_update(bar, s->tokens, extra);
    if (last || interrupted() || (o->ckpt_every && s->step % o->ckpt_every == 0))
        TRY(save_state(s, e));
    return !last && interrupted() ? ERR(e, E_INTERRUPTED, "search: interrupted after micro-step %" PRId64 " of %" PRId64 "; run the same command again to go on", s->step, o->steps) : 0;
}

static int hard_eval(struct model *super, struct acts *acts, struct stream *st, const enum mixer_kind *kind, const struct search_opts *o, struct kl_sums *out, struct err *e)
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
    static const char *const zero_words[] = {"", "layer0=search", "layer0=linear", "layer0=full"};
    snprintf(sel->variant, sizeof sel->variant, "%s%s%s", zero_words[o->layer0], o->positions == POS_ANSWERS ? " positions=answers" : "", o->relax == RELAX_STE ? " straight-through" : "");
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

static int finish(struct searcher *s, struct model *super, struct acts *acts, struct stream *st, struct search_result *out, struct err *e)
{
    const struct search_opts *o = s->o;
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
    out->tokens = s->tokens;
    return 0;
}

static int check_opts(const struct search_opts *o, const struct shard *data, struct err *e)
{
    if (o->micro < 1 || o->micro > 64 || o->accumulate < 1 || o->steps < 1)
        return ERR(e, E_USAGE, "search: micro-batch %" PRId64 " (1..64), accumulation %" PRId64 " and steps %" PRId64 " must be positive", o->micro, o->accumulate, o->steps);
    if (o->heldout < 1 || o->row_lo < 0 || o->row_hi > data->rows - o->heldout || o->row_lo >= o->row_hi)
        return ERR(e, E_USAGE, "search: rows %" PRId64 "..%" PRId64 " must lie before the %" PRId64 " held-out rows of %" PRId64, o->row_lo, o->row_hi, o->heldout, data->rows);
    if (o->t_hi <= 0 || o->t_lo <= 0 || o->lambda < 0)
        return ERR(e, E_USAGE, "search: temperatures %g and %g must be positive, lambda %g not negative", o->t_hi, o->t_lo, o->lambda);
    if (o->window_op && (o->window < 1 || o->window >= data->seq))
        return ERR(e, E_USAGE, "search: window %" PRId64 " must be in 1..%" PRId64 " (the rows' length less 1)", o->window, data->seq - 1);
    return 0;
}

int search_run(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache, const struct search_opts *o, const char *dir, struct search_result *out, struct err *e)
{
    struct searcher s = {.o = o, .dir = dir};
    struct stream st = {0};
    struct acts acts = {0};
    struct row_order order = {0};
    struct model *super = NULL;
    struct prog bar;
    *out = (struct search_result){0};
    TRY(check_opts(o, data, e));
    TRY(mkdir_p(dir, e));
    search_gates_init(&s.g, o, (int)teacher->cfg.L, data->seq);
    struct acts_opts ao = {.rows = o->micro * data->seq, .seqs = (int32_t)o->micro, .train = true, .wgrad = false};
    double flops0 = teacher->be->flops;
    int rc = load_state(&s, e) || search_supernet(&super, teacher, lin, &s.g, o->window, e) || set_p(super, &s.g, 1, false, e) || acts_open(&acts, super, &ao, e) ||
             stream_open(&st, teacher->be, data, teacher, cache, o->micro, o->tau, e) || order_init(&order, o->seed, o->row_lo, o->row_hi, e);
    prog_start(&bar, "search", "tok", o->steps * o->micro * data->seq);
    while (rc == 0 && s.step < o->steps)
        rc = micro_step(&s, super, &acts, &st, &order, &bar, e);
    prog_end(&bar);
    if (rc == 0)
        rc = finish(&s, super, &acts, &st, out, e);
    out->flops = teacher->be->flops - flops0;
    if (order.perm)
        order_free(&order);
    stream_close(&st);
    if (acts.layer)
        acts_close(&acts);
    if (super)
        model_close(super);
    str_free(&s.log);
    return rc ? -1 : 0;
}
