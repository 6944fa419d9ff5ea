/* Stage kinds: teacher hidden rows, Stage 1, Stage 2, Stage 3. Defaults: selectors.md A and E. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/stages_work.h"
#include "cli/select_plan.h"
#include "cli/stages_cost.h"
#include "core/log.h"
#include "dash/align.h"
#include "dash/distill.h"
#include "dash/search.h"

static const char *const loss_words[] = {"l2norm", "mse", NULL};
static const char *const expand_words[] = {"head", "row", NULL};
static const char *const anneal_words[] = {"linear", "exp", "none", NULL};
static const char *const layer0_words[] = {"paper", "search", "linear", "full", NULL};
static const char *const relax_words[] = {"soft", "straight-through", "bilevel", NULL};

/* ---- hidden ---- */

static const struct param_spec hidden_params[] = {P_MODEL, P_DATA, {.name = "micro", .type = PT_INT, .unit = "rows", .def = "8", .lo = 1,
                                                      .hi = 64, .help = "rows computed at once", .free = true}};

static int hidden_run(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct work w;
    struct result res;
    TRY(work_open(&w, ctx, n, true, false, false, e));
    int rc = hcache_make(r->out, w.teacher, &w.data, node_i64(n, "micro"), e);
    if (rc == 0) {
        result_begin(&res);
        jw_ki64(&res.w, "tokens", w.data.tokens);
        rc = result_save(&res, r, e);
    }
    work_close(&w);
    return rc;
}
const struct stage_kind kind_hidden = {.name = "hidden",
                                       .about = "the teacher's final hidden rows of a shard, once for all searches and distillations",
                                       .version = 1, .params = hidden_params, .n_params = ARRAY_LEN(hidden_params), .plan = stage_plan,
                                       .run = hidden_run};

/* ---- align ---- */

static const struct param_spec align_params[] = {
    P_MODEL, P_DATA,
    {.name = "tokens", .type = PT_INT, .unit = "tokens", .def = NULL, .lo = 1, .hi = 1e13,
     .help = "training tokens (rounded to whole updates)"},
    P_BATCH("16"), P_ADAM("0.001", "0.001", "0.01"),
    {.name = "schedule", .type = PT_WORD, .def = "cosine", .words = schedule_words, .help = "learning rate"},
    {.name = "loss", .type = PT_WORD, .def = "l2norm", .words = loss_words,
     .help = "mse: DASH eq. 10; l2norm: unsquared, as published baselines"},
    {.name = "free_running", .type = PT_BOOL, .def = "false", .help = "student on its own stream instead of the teacher's"},
    {.name = "kv_expand", .type = PT_WORD, .def = "head", .words = expand_words,
     .help = "k, v weights: whole heads repeated, or rows (GA-S2's code)"},
    {.name = "gate_scale", .type = PT_NUM, .def = "1.0", .lo = 0, .hi = 10, .help = "factor on the fresh output gate projection"},
    {.name = "conv", .type = PT_BOOL, .def = "false", .help = "short convolution of 4 taps on q, k, v"},
    {.name = "gate", .type = PT_BOOL, .def = "true", .help = "output gate"},
    P_ROWS, P_SEED, P_CKPT, P_RECOMPUTE};

static int align_go(struct env *env, const struct node *n, struct run *r, struct work *w, struct err *e)
{
    char metrics[1024];
    struct align_opts o = {.squared = !strcmp(node_str(n, "loss"), "mse"), .free_running = node_bool(n, "free_running"),
                           .heldout = w->heldout, .recompute = node_bool(n, "recompute")};
    struct align_result out;
    struct linset_opts lo = LINSET_OPTS;
    struct result res;
    UNUSED(env);
    lo.init.seed = (uint64_t)node_i64(n, "seed");
    lo.init.kv_expand = !strcmp(node_str(n, "kv_expand"), "row") ? KV_EXPAND_ROW : KV_EXPAND_HEAD;
    lo.init.gate_scale = node_f64(n, "gate_scale");
    lo.conv = node_bool(n, "conv");
    lo.gate = node_bool(n, "gate");
    TRY(linset_make(&w->lin, w->teacher, &lo, e));
    work_train_opts(&o.train, n, w, r, "align", node_i64(n, "tokens"), path_join(metrics, r->out, "metrics.tsv"));
    TRY(align_run(w->teacher, w->lin, &w->data, &o, &out, e));
    TRY(linset_save(w->lin, r->out, "float32", e));
    if (o.train.keep_best) { /* out/best is a set of mixers, too */
        char best[1024];
        TRY(mkdir_p(path_join(best, r->out, "best"), e));
        TRY(train_load_best(w->lin->be, &w->lin->params, r->work, e));
        TRY(linset_save(w->lin, best, "float32", e));
    }
    result_begin(&res);
    jw_ki64(&res.w, "tokens", out.train.tokens);
    jw_ki64(&res.w, "steps", out.train.steps);
    jw_kf64(&res.w, "loss_first", out.train.loss_first);
    jw_kf64(&res.w, "loss_last", out.train.loss_last);
    work_put_best(&res, &o.train, &out.train);
    jw_kf64(&res.w, "heldout_before", out.train.eval_first[0]);
    jw_kf64(&res.w, "heldout_after", out.train.eval_last[0]);
    for (int64_t l = 0; l < w->teacher->cfg.L; l++) {
        char key[32];
        snprintf(key, sizeof key, "heldout_layer_%" PRId64, l);
        jw_kf64(&res.w, key, out.heldout[l]);
    }
    return result_save(&res, r, e);
}

static int align_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct work w;
    TRY(work_open(&w, ctx, n, true, false, false, e));
    int rc = work_rows(&w, n, e) || align_go(ctx, n, r, &w, e);
    work_close(&w);
    return rc ? -1 : 0;
}
const struct stage_kind kind_align = {.name = "align", .about = "Stage 1: linear mixers aligned with the teacher's attention", .version = 1,
                                      .params = align_params, .n_params = ARRAY_LEN(align_params), .plan = stage_plan, .run = align_stage};

/* ---- search ---- */

static const char *const ops_words[] = {"full,linear", "full,window,linear", NULL};
static const struct param_spec search_params[] = {
    P_MODEL, P_LINEAR, P_DATA, P_HIDDEN,
    {.name = "ops", .type = PT_WORD, .def = "full,window,linear", .words = ops_words, .help = "operators"},
    {.name = "window", .type = PT_INT, .unit = "tokens", .def = "128", .lo = 1, .hi = 1e6,
     .help = "window of the Window operator, with the token itself"},
    {.name = "lambda", .type = PT_NUM, .def = "", .lo = 0, .hi = 100,
     .help = "weight of the cost, nats per token; with a budget where the runs start (default 0.1)"},
    {.name = "budget", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 256,
     .help = "column to fill: budget - 0.5 < realised <= budget; 0 = one run at lambda"},
    {.name = "sweep", .type = PT_NUMS, .def = "", .lo = 0, .hi = 100,
     .help = "instead: these lambdas, each with logits of its own, on one pass of the teacher; the first is the stage's choice, all stand "
     "in tries.tsv and sweep-N/"},
    {.name = "seeds", .type = PT_INTS, .def = "0", .lo = 0, .hi = 4294967295.0,
     .help = "tried in this order; the first that fills the column is taken"},
    {.name = "bisect", .type = PT_INT, .unit = "runs", .def = "4", .lo = 0, .hi = 64,
     .help = "more runs, lambda bisected in log scale, when no seed fills it"},
    {.name = "tokens", .type = PT_INT, .unit = "tokens", .def = NULL, .lo = 1, .hi = 1e13,
     .help = "tokens of one run (rounded to whole micro-steps)"},
    {.name = "micro", .type = PT_INT, .unit = "rows", .def = "2", .lo = 1, .hi = 64, .help = "rows of a micro-step"},
    {.name = "accumulate", .type = PT_INT, .def = "8", .lo = 1, .hi = 4096, .help = "micro-steps of an update"},
    {.name = "drop_partial", .type = PT_BOOL, .def = "false", .help = "leave out a last, shorter group of micro-steps"},
    {.name = "anneal", .type = PT_WORD, .def = "linear", .words = anneal_words, .help = "T_arch over micro-steps"},
    {.name = "t_hi", .type = PT_NUM, .def = "1.0", .lo = 1e-3, .hi = 100, .help = "first T_arch"},
    {.name = "t_lo", .type = PT_NUM, .def = "0.1", .lo = 1e-3, .hi = 100, .help = "last T_arch"},
    {.name = "lr", .type = PT_NUM, .def = "0.1", .lo = 0, .hi = 100, .help = "learning rate of the logits"},
    {.name = "beta1", .type = PT_NUM, .def = "0.9", .lo = 0, .hi = 0.9999, .help = "AdamW"},
    {.name = "beta2", .type = PT_NUM, .def = "0.95", .lo = 0, .hi = 0.99999, .help = "AdamW"},
    {.name = "eps", .type = PT_NUM, .def = "1e-08", .lo = 0, .hi = 1, .help = "AdamW"},
    {.name = "alpha_init_std", .type = PT_NUM, .def = "0.0", .lo = 0, .hi = 10, .help = "spread of the first logits"},
    {.name = "tau", .type = PT_NUM, .def = "1.0", .lo = 0.01, .hi = 100, .help = "temperature of the KL"},
    {.name = "layer0", .type = PT_WORD, .def = "paper", .words = layer0_words, .help = "paper: Full in the search, Linear at the end"},
    {.name = "relax", .type = PT_WORD, .def = "soft", .words = relax_words,
     .help = "straight-through: one-hot forward; bilevel: mixer weights learn on the other half of the rows"},
    {.name = "lr_weights", .type = PT_NUM, .def = "0.0001", .lo = 0, .hi = 10, .help = "bilevel: learning rate of the weights"},
    P_POSITIONS, P_ROWS, P_CKPT, P_RECOMPUTE};

struct fill { /* runs of one search stage */
    const struct node *n;
    struct run *r;
    struct work *w;
    struct search_opts o;
    double column;
    struct str tries; /* tries.tsv */
    int count;
    int64_t tokens;
    double flops, flops_forward;
    struct hcache made; /* the teacher's rows, computed once for several runs when none are given */
    uint64_t first_seed;
    struct search_result best;
    double best_lambda;
    bool have, filled;
    double lambda[128], budget[128]; /* of the runs with the first seed: what the bisection sees */
    int n_seen;
};

static bool in_column(double budget, double column)
{
    return budget > column - 0.5 && budget <= column + 1e-9;
}

static double kl_mean(double sum, double n)
{
    return n > 0 ? sum / n : 0;
}

static void note_try(struct fill *f, const struct search_result *s)
{
    struct str spec = STR_INIT;
    char mask[MAX_LAYERS + 1];
    const struct kl_sums *k[3] = {&s->soft, &s->argmax_full0, &s->argmax};
    layers_text(s->sel.kind, s->sel.layers, &spec);
    layers_mask(s->sel.kind, s->sel.layers, mask);
    if (f->tries.len == 0)
        str_puts(&f->tries,
                 "try\tseed\tlambda\tbudget\tsoft_budget\tentropy\ttop1\tmargin\tambiguous\tkl_soft\tkl_argmax_layer0\tkl_argmax\tkl_answers_soft\tkl_answers_argmax_layer0\tkl_answers_argmax\t"
                 "tokens\tfills\tspec\tmask\n");
    str_printf(&f->tries, "%d\t%" PRIu64 "\t%.9g\t%.9g\t%.6f\t%.5f\t%.5f\t%.5f\t%d", f->count, f->o.seed, f->o.lambda, s->sel.budget,
               s->diag.budget_soft, s->diag.entropy, s->diag.top1, s->diag.margin, s->diag.ambiguous);
    for (int i = 0; i < 3; i++)
        str_printf(&f->tries, "\t%.9g", kl_mean(k[i]->all, k[i]->n_all));
    for (int i = 0; i < 3; i++)
        str_printf(&f->tries, "\t%.9g", kl_mean(k[i]->answers, k[i]->n_answers));
    str_printf(&f->tries, "\t%" PRId64 "\t%s\t%s\t%s\n", s->tokens, f->column > 0 ? in_column(s->sel.budget, f->column) ? "yes" : "no"
               : "-", str_c(&spec), mask);
    str_free(&spec);
}

/* The log of a run, beside the stage's other results. */
static int keep_log(struct fill *f, const char *dir, struct err *e)
{
    char name[32], from[1024], to[1024];
    struct str log = STR_INIT;
    snprintf(name, sizeof name, "log-%d.tsv", f->count);
    int rc = file_read(path_join(from, dir, "log.tsv"), (size_t)1 << 30, &log, e) || file_write(path_join(to, f->r->out, name), str_c(&log),
        log.len, e);
    str_free(&log);
    return rc ? -1 : 0;
}

/* Books a finished run: its line, its log, its cost. */
static int book(struct fill *f, const struct search_result *s, const char *dir, struct err *e)
{
    TRY(keep_log(f, dir, e));
    note_try(f, s);
    f->count++;
    f->tokens += s->tokens;
    f->flops += s->flops;
    f->flops_forward += s->flops_forward;
    return 0;
}

static int one_try(struct fill *f, struct err *e)
{
    char dir[1024], name[32];
    struct search_result s;
    snprintf(name, sizeof name, "try-%d", f->count);
    path_join(dir, f->r->work, name);
    log_info("search: seed %" PRIu64 ", lambda %g", f->o.seed, f->o.lambda);
    TRY(search_run(f->w->teacher, f->w->lin, &f->w->data, f->w->hidden, &f->o, dir, &s, e));
    TRY(book(f, &s, dir, e));
    bool fills = f->column <= 0 || in_column(s.sel.budget, f->column);
    bool closer = !f->have || (s.sel.budget <= f->column && (f->best.sel.budget > f->column || s.sel.budget > f->best.sel.budget)) ||
                  (f->best.sel.budget > f->column && s.sel.budget < f->best.sel.budget);
    if (!f->filled && (fills || closer)) {
        f->best = s;
        f->best_lambda = f->o.lambda;
    }
    f->have = true;
    f->filled = f->filled || fills;
    if (f->o.seed == f->first_seed && f->n_seen < (int)ARRAY_LEN(f->lambda)) {
        f->lambda[f->n_seen] = f->o.lambda;
        f->budget[f->n_seen++] = s.sel.budget;
    }
    log_info("search: realised budget %.3f%s", s.sel.budget, fills ? "" : " (does not fill the column)");
    return 0;
}

/* The lambdas of a sweep in lockstep; the first is the stage's own choice, each has its selection in sweep-N/. */
static int sweep(struct fill *f, struct err *e)
{
    enum { MOST = 64 };
    double lambda[MOST];
    char(*dir)[1024] = calloc(MOST, sizeof *dir), out[1024], name[32];
    const char *dirs[MOST];
    struct search_result *res = calloc(MOST, sizeof *res);
    int n = (int)node_list_f64(f->n, "sweep", lambda, MOST), rc = dir && res ? 0 : err_nomem(e, MOST * sizeof *res, "a sweep");
    for (int i = 0; rc == 0 && i < n; i++) {
        snprintf(name, sizeof name, "try-%d", i);
        dirs[i] = path_join(dir[i], f->r->work, name);
    }
    if (rc == 0)
        rc = search_sweep(f->w->teacher, f->w->lin, &f->w->data, f->w->hidden, &f->o, lambda, n, dirs, res, e);
    for (int i = 0; rc == 0 && i < n; i++) {
        f->o.lambda = lambda[i];
        snprintf(name, sizeof name, "sweep-%d", i);
        rc = book(f, &res[i], dirs[i], e) || mkdir_p(path_join(out, f->r->out, name), e) || selection_save(&res[i].sel, out, e) ? -1 : 0;
        log_info("search: lambda %g: realised budget %.3f", lambda[i], res[i].sel.budget);
    }
    if (rc == 0) {
        f->best = res[0];
        f->best_lambda = lambda[0];
        f->filled = true;
    }
    free(dir);
    free(res);
    return rc;
}

/*
 * A larger lambda gives a smaller budget, mostly: the bracket is the smallest lambda with a budget at or under the column and the
 * largest one below it with a budget over; halved in log scale, or sought by factors of two where a side is missing. So every run
 * narrows it, also where the budget is not monotone.
 */
static double next_lambda(const struct fill *f)
{
    double high = 0, low = 0, largest = 0;
    for (int i = 0; i < f->n_seen; i++) {
        largest = fmax(largest, f->lambda[i]);
        if (f->budget[i] <= f->column && (high == 0 || f->lambda[i] < high))
            high = f->lambda[i];
    }
    for (int i = 0; i < f->n_seen; i++)
        if (f->budget[i] > f->column && f->lambda[i] > low && (high == 0 || f->lambda[i] < high))
            low = f->lambda[i];
    if (high == 0)
        return largest * 2;
    return low > 0 ? sqrt(low * high) : high / 2;
}

static int fill_column(struct fill *f, struct err *e)
{
    int64_t seeds[64];
    size_t n = node_list_i64(f->n, "seeds", seeds, ARRAY_LEN(seeds));
    f->first_seed = n ? (uint64_t)seeds[0] : 0;
    for (size_t i = 0; i < n && !f->filled; i++) {
        f->o.seed = (uint64_t)seeds[i];
        TRY(one_try(f, e));
    }
    f->o.seed = f->first_seed;
    for (int64_t i = 0; i < node_i64(f->n, "bisect") && !f->filled; i++) {
        f->o.lambda = next_lambda(f);
        TRY(one_try(f, e));
    }
    return 0;
}

static void search_result_json(struct result *res, const struct fill *f)
{
    const struct search_result *s = &f->best;
    jw_ki64(&res->w, "runs", f->count);
    jw_kf64(&res->w, "lambda", f->best_lambda);
    jw_ki64(&res->w, "search_seed", (int64_t)s->sel.seed);
    jw_kf64(&res->w, "window", node_f64(f->n, "window"));
    jw_kf64(&res->w, "soft_budget", s->diag.budget_soft);
    jw_kf64(&res->w, "entropy", s->diag.entropy);
    jw_kf64(&res->w, "top1", s->diag.top1);
    jw_kf64(&res->w, "margin", s->diag.margin);
    jw_ki64(&res->w, "ambiguous", s->diag.ambiguous);
    jw_kf64(&res->w, "entropy_t1", s->diag_t1.entropy);
    jw_kf64(&res->w, "top1_t1", s->diag_t1.top1);
    jw_kf64(&res->w, "kl_soft", s->soft.all / s->soft.n_all);
    jw_kf64(&res->w, "kl_argmax_layer0", s->argmax_full0.all / s->argmax_full0.n_all);
    jw_kf64(&res->w, "kl_argmax", s->argmax.all / s->argmax.n_all);
    jw_kf64(&res->w, "kl_answers_soft", s->soft.n_answers > 0 ? s->soft.answers / s->soft.n_answers : 0);
    jw_kf64(&res->w, "kl_answers_argmax_layer0", s->argmax_full0.n_answers > 0 ? s->argmax_full0.answers / s->argmax_full0.n_answers : 0);
    jw_kf64(&res->w, "kl_answers_argmax", s->argmax.n_answers > 0 ? s->argmax.answers / s->argmax.n_answers : 0);
}

static void search_opts_of(struct search_opts *o, const struct node *n, const struct work *w)
{
    *o = (struct search_opts){.window_op = !strcmp(node_str(n, "ops"), "full,window,linear"), .window = node_i64(n, "window"),
                              .lambda = node_has(n, "lambda") ? node_f64(n, "lambda") : 0.1, .micro = node_i64(n, "micro"),
                              .accumulate = node_i64(n, "accumulate"), .drop_partial = node_bool(n, "drop_partial"),
                              .anneal = (enum anneal)word_at(anneal_words, node_str(n, "anneal")),
                              .relax = (enum relax)word_at(relax_words, node_str(n, "relax")), .lr_weights = node_f64(n, "lr_weights"),
                              .t_hi = node_f64(n, "t_hi"), .t_lo = node_f64(n, "t_lo"), .lr = node_f64(n, "lr"), .b1 = node_f64(n, "beta1"),
                              .b2 = node_f64(n, "beta2"), .eps = node_f64(n, "eps"), .alpha_init_std = node_f64(n, "alpha_init_std"),
                              .tau = node_f64(n, "tau"), .layer0 = (enum layer0)word_at(layer0_words, node_str(n, "layer0")),
                              .positions = (enum positions)word_at(positions_words, node_str(n, "positions")), .row_lo = w->row_lo,
                              .row_hi = w->row_hi, .heldout = w->heldout, .ckpt_every = node_i64(n, "ckpt_every"),
                              .recompute = node_bool(n, "recompute")};
    o->steps = work_steps(w, node_i64(n, "tokens"), o->micro);
}

static int search_args(const struct node *n, struct err *e)
{
    bool lambda = node_has(n, "lambda"), budget = node_f64(n, "budget") > 0, many = node_has(n, "sweep");
    if (!lambda && !budget && !many)
        return ERR(e, E_USAGE, "stage '%s': search needs 'lambda', 'budget' or 'sweep'", n->stage->id);
    if (many && (lambda || budget))
        return ERR(e, E_USAGE, "stage '%s': 'sweep' stands alone: it takes the place of 'lambda' and of 'budget'", n->stage->id);
    double list[65];
    if (many && node_list_f64(n, "sweep", list, ARRAY_LEN(list)) > 64)
        return ERR(e, E_USAGE, "stage '%s': more than 64 values of 'sweep'", n->stage->id);
    return 0;
}

/* Several runs ahead and no teacher rows given: they are computed once, in the work folder, unless they would fill a disk. */
static int share_teacher(struct fill *f, struct err *e)
{
    char dir[1024], file[1024];
    const double most_bytes = 8.0 * 1073741824;
    double bytes = (double)f->w->data.rows * (double)f->w->data.seq * (double)f->w->teacher->cfg.d * sizeof(float);
    if (f->w->hidden || f->column <= 0)
        return 0;
    if (bytes > most_bytes) {
        log_info("search: the teacher's hidden rows would take %.1f GiB (more than 8), so it runs in every search; 'hidden' takes rows "
                 "made beforehand", bytes / 1073741824);
        return 0;
    }
    path_join(dir, f->r->work, "hidden");
    if (!file_exists(path_join(file, dir, "hidden.json"))) {
        TRY(mkdir_p(dir, e));
        TRY(hcache_make(dir, f->w->teacher, &f->w->data, 8, e));
    }
    TRY(hcache_open(&f->made, dir, &f->w->data, f->w->teacher, e));
    f->w->hidden = &f->made;
    return 0;
}

static int search_go(struct fill *f, struct err *e)
{
    char path[1024];
    int64_t seeds[1];
    TRY(work_rows(f->w, f->n, e));
    search_opts_of(&f->o, f->n, f->w);
    f->o.seed = node_list_i64(f->n, "seeds", seeds, 1) ? (uint64_t)seeds[0] : 0;
    TRY(share_teacher(f, e));
    TRY(node_has(f->n, "sweep") ? sweep(f, e) : fill_column(f, e));
    TRY(file_write(path_join(path, f->r->out, "tries.tsv"), str_c(&f->tries), f->tries.len, e));
    struct result res;
    struct selection *sel = &f->best.sel;
    sel->filled = f->filled;
    sel->asked = (int64_t)f->column;
    sel->tokens = f->tokens;
    sel->flops_forward = f->flops_forward;
    sel->flops_backward = f->flops - f->flops_forward;
    result_begin(&res);
    search_result_json(&res, f);
    TRY(save_selection(sel, f->r, &res, e));
    if (!f->filled)
        log_warn("search: none of %d runs has a realised budget in (%g, %g]; see tries.tsv", f->count, f->column - 0.5, f->column);
    return 0;
}

static int search_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct work w;
    struct fill f = {.n = n, .r = r, .w = &w, .column = node_f64(n, "budget")};
    TRY(search_args(n, e));
    TRY(work_open(&w, ctx, n, true, true, true, e));
    int rc = search_go(&f, e);
    str_free(&f.tries);
    if (f.made.map.p) {
        hcache_close(&f.made);
        w.hidden = NULL;
    }
    work_close(&w);
    return rc;
}

static int search_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    TRY(search_args(n, e));
    TRY(linear_plan(n, e));
    return stage_plan(ctx, n, c, e);
}
const struct stage_kind kind_search = {.name = "search",
                                       .about = "Stage 2: DASH search; with a budget, seeds and lambdas are tried until the column is "
                                       "filled", .version = 1, .params = search_params, .n_params = ARRAY_LEN(search_params),
                                       .by_content = true, .plan = search_plan, .run = search_stage};

/* ---- distill ---- */

static const char *const unfilled_words[] = {"refuse", "use", NULL};
static const struct param_spec distill_params[] = {
    P_MODEL, P_LINEAR, P_DATA, P_HIDDEN,
    {.name = "layers", .type = PT_REF, .help = "a select or search run (or, by flag, a layer spec such as 0,5,11)", .fan = true},
    {.name = "unfilled", .type = PT_WORD, .def = "refuse", .words = unfilled_words,
     .help = "a search that did not reach its budget: refuse, or use its closest set at or under it"},
    {.name = "tokens", .type = PT_INT, .unit = "tokens", .def = NULL, .lo = 0, .hi = 1e13,
     .help = "training tokens; 0 assembles without training"},
    P_BATCH("8"), P_ADAM("7e-06", "0.0001", "0.01"),
    {.name = "schedule", .type = PT_WORD, .def = "const", .words = schedule_words, .help = "learning rate"},
    {.name = "window", .type = PT_INT, .unit = "tokens", .def = "128", .lo = 1, .hi = 1e6, .help = "of Window layers"},
    {.name = "tau", .type = PT_NUM, .def = "1.0", .lo = 0.01, .hi = 100, .help = "temperature of the KL"},
    {.name = "init_from", .type = PT_REF, .def = "", .help = "go on from a finished run's hybrid"},
    P_POSITIONS, P_ROWS, P_SEED, P_CKPT, P_RECOMPUTE};

static int read_layers(const struct node *n, struct run *r, int layers, enum mixer_kind *kind, struct err *e)
{
    char path[1024], file[1024];
    struct selection s;
    node_path(n, "layers", path);
    if (dir_exists(path) && !file_exists(path_join(file, path, "selection.json")))
        return ERR(e, E_INPUT, "'%s' chooses no layers: it has no selection.json; give a run of select or search, or a list such as 0,5,11",
                   path);
    if (!file_exists(path_join(file, path, "selection.json")))
        return layers_parse(node_str(n, "layers"), layers, kind, e);
    TRY(selection_load(&s, file, e));
    if (s.layers != layers)
        return ERR(e, E_INPUT, "'%s' is a choice for %d layers, the model has %d", file, s.layers, layers);
    r->declined = s.uninformative;
    if (s.uninformative)
        return ERR(e, E_CHECK,
                   "uninformative probe: the teacher gets %.1f %% of the prompts of '%s' right, below 20 %%; nothing is trained for it "
                   "('%s')", 100 * s.base, s.method, file);
    if (!s.filled && (!strcmp(node_str(n, "unfilled"), "refuse") || s.budget > (double)s.asked))
        return ERR(e, E_CHECK, "no search run reached the budget asked for (%" PRId64 "); see tries.tsv beside '%s'", s.asked, file);
    memcpy(kind, s.kind, sizeof(enum mixer_kind) * (size_t)layers);
    return 0;
}

static int distill_go(struct env *env, const struct node *n, struct run *r, struct work *w, struct model **student, struct err *e)
{
    enum mixer_kind kind[MAX_LAYERS];
    unsigned ops[MAX_LAYERS];
    char path[1024], mp[1024];
    struct distill_opts o = {.tau = node_f64(n, "tau"), .positions = (enum positions)word_at(positions_words, node_str(n, "positions")),
                             .heldout = w->heldout, .recompute = node_bool(n, "recompute")};
    struct distill_result out;
    struct result res;
    TRY(read_layers(n, r, (int)w->teacher->cfg.L, kind, e));
    for (int64_t l = 0; l < w->teacher->cfg.L; l++)
        ops[l] = MIX_BIT(kind[l]);
    struct assemble_opts ao = {.ops = ops, .window = node_i64(n, "window"), .copy = true};
    struct model_open_opts mo = {.trainable = true};
    if (node_has(n, "init_from"))
        TRY(model_open(student, env->rt.be, model_path(node_path(n, "init_from", path), mp), &mo, e));
    else
        TRY(model_assemble(student, w->teacher, w->lin, &ao, e));
    int64_t tokens = node_i64(n, "tokens");
    work_train_opts(&o.train, n, w, r, "distill", tokens, path_join(path, r->out, "metrics.tsv"));
    TRY(distill_run(*student, w->teacher, &w->data, w->hidden, &o, &out, e));
    TRY(model_save(*student, r->out, "float32", r->key, e));
    if (o.train.keep_best) {
        TRY(mkdir_p(path_join(path, r->out, "best"), e));
        TRY(train_load_best(env->rt.be, &(*student)->params, r->work, e));
        TRY(model_save(*student, path, "float32", r->key, e));
    }
    struct str spec = STR_INIT;
    layers_text(kind, (int)w->teacher->cfg.L, &spec);
    result_begin(&res);
    jw_kstr(&res.w, "spec", str_c(&spec));
    jw_ki64(&res.w, "tokens", out.train.tokens);
    jw_ki64(&res.w, "steps", out.train.steps);
    jw_kf64(&res.w, "kl_before", out.before.all / fmax(out.before.n_all, 1));
    jw_kf64(&res.w, "kl_after", out.after.all / fmax(out.after.n_all, 1));
    jw_kf64(&res.w, "kl_answers_before", out.before.answers / fmax(out.before.n_answers, 1));
    jw_kf64(&res.w, "kl_answers_after", out.after.answers / fmax(out.after.n_answers, 1));
    jw_kf64(&res.w, "loss_first", out.train.loss_first);
    jw_kf64(&res.w, "loss_last", out.train.loss_last);
    work_put_best(&res, &o.train, &out.train);
    str_free(&spec);
    return result_save(&res, r, e);
}

static int distill_stage(void *ctx, const struct node *n, struct run *r, struct err *e)
{
    struct work w;
    struct model *student = NULL;
    TRY(work_open(&w, ctx, n, true, true, true, e));
    int rc = work_rows(&w, n, e) || distill_go(ctx, n, r, &w, &student, e);
    if (student)
        model_close(student);
    work_close(&w);
    return rc ? -1 : 0;
}
static int distill_plan(void *ctx, const struct node *n, struct stage_cost *c, struct err *e)
{
    TRY(linear_plan(n, e));
    TRY(layers_plan(n, e));
    return stage_plan(ctx, n, c, e);
}
const struct stage_kind kind_distill = {.name = "distill", .about = "Stage 3: assemble a hybrid and distil it", .version = 1,
                                        .params = distill_params, .n_params = ARRAY_LEN(distill_params), .plan = distill_plan,
                                        .run = distill_stage};

/* ---- commands ---- */

int cmd_align(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_align, "align", "Stage 1: aligns a linear (Gated DeltaNet) mixer with the attention of every layer.",
                     "  dashlab align --model experiments/tiny/teacher --data shards/train --tokens 800k --out runs/align", argc, argv, e);
}
int cmd_distill(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_distill, "distill",
                     "Stage 3: assembles a hybrid from the teacher and a Stage-1 run and distils it. --layers takes a run of select or "
                     "search, or a spec: \"0,5,11\", \"full:0,5 window:2,3\".",
                     "  dashlab distill --model M --linear runs/align --layers 0,5,10 --data shards/train --tokens 160k --out "
                     "runs/uniform3", argc, argv, e);
}
int cmd_search(int argc, char **argv, struct err *e)
{
    return cli_stage(&kind_search, "search",
                     "Stage 2: differentiable search of the operator of every layer. With --budget B, seeds and then lambdas are tried "
                     "until B - 0.5 < realised budget <= B, on one pass of the teacher; "
                     "--sweep X,.. runs several lambdas side by side. tries.tsv reports every run.",
                     "  dashlab search --model M --linear runs/align --data shards/train --tokens 250k --lambda 0.05 --out runs/dash\n"
                     "  dashlab search --model M --linear runs/align --data shards/train --tokens 250k --budget 3 --out runs/dash3", argc,
                     argv, e);
}
