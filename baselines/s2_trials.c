/*
 * GA-S2 and GR-S2: a short distillation for every layer [selectors.md B.6, B.7]. Addition: the Stage-1 all-linear student with one
 * layer's attention restored, kept layers = lowest loss. Removal: the teacher with one layer linear, kept layers = highest loss. Layers
 * are independent (same data order), so each is a piece that is finished and recorded on its own.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"
#include "core/fs.h"
#include "core/log.h"
#include "core/prov.h"
#include "dash/distill.h"

struct trial { /* what one distillation gave, from its first update on */
    double heldout[2], loss; /* held-out KL at all positions and at answers; training loss of the last tenth */
    int64_t tokens;
    double flops_forward, flops_backward;
};
struct s2 {
    const struct select_input *in;
    const struct select_train *t;
    bool removal;
    int64_t row_hi;
    struct str table;        /* trials.tsv */
    int64_t tokens;
    double flops_forward, flops_backward;
};

/* ---- one distillation ---- */

static int read_done(const char *path, struct trial *t, struct err *e)
{
    struct str s = STR_INIT;
    long long tokens = 0;
    TRY(file_read(path, 4096, &s, e));
    bool ok = sscanf(str_c(&s), "%la %la %la %lld %la %la", &t->heldout[0], &t->heldout[1], &t->loss, &tokens, &t->flops_forward,
                     &t->flops_backward) == 6;
    str_free(&s);
    t->tokens = tokens;
    return ok ? 0 : ERR(e, E_INPUT, "'%s' is not a finished layer of this method; remove the run's folder to start again", path);
}

static int write_done(const char *path, const struct trial *t, struct err *e)
{
    char text[256];
    int n = snprintf(text, sizeof text, "%a %a %a %" PRId64 " %a %a\n", t->heldout[0], t->heldout[1], t->loss, t->tokens, t->flops_forward,
                     t->flops_backward);
    return file_write(path, text, (size_t)n, e);
}

static int distil(struct s2 *s, const bool *full, const char *dir, const char *what, int64_t steps, struct trial *out, struct err *e)
{
    const struct select_input *in = s->in;
    unsigned ops[MAX_LAYERS];
    struct model *student = NULL;
    struct distill_result r;
    for (int l = 0; l < in->layers; l++)
        ops[l] = MIX_BIT(full[l] ? MIX_FULL : MIX_GDN);
    struct assemble_opts ao = {.ops = ops, .copy = true};
    struct distill_opts o = {.tau = 1, .positions = in->positions, .heldout = s->t->heldout};
    o.train = (struct train_opts){.stage = what, .dir = dir, .steps = steps, .batch = s->t->batch, .micro = MIN(in->micro, s->t->batch),
                                  .lr = {s->t->lr > 0 ? s->t->lr : 7e-6, s->t->lr_mixer > 0 ? s->t->lr_mixer : 1e-4},
                                  .schedule = SCHED_CONST, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .wd = 0.01, .clip = 1, .seed = in->seed,
                                  .row_hi = s->row_hi, .ckpt_every = s->t->ckpt_every};
    TRY(model_assemble(&student, in->teacher, in->lin, &ao, e));
    int rc = distill_run(student, in->teacher, in->data, in->cache, &o, &r, e);
    model_close(student);
    if (rc != 0)
        return err_wrap(e, "%s", what);
    *out = (struct trial){.heldout = {kl_of(&r.after, POS_ALL), kl_of(&r.after, POS_ANSWERS)}, .loss = r.train.loss_last,
                          .tokens = r.train.tokens, .flops_forward = r.flops_forward, .flops_backward = r.flops_backward};
    return 0;
}

/* piece: name of the finished piece; keep: name of the training that it belongs to, gone on with by a later piece, or NULL. */
static int trial(struct s2 *s, const bool *full, const char *piece, const char *keep, int64_t steps, struct trial *out, struct err *e)
{
    char done[1024], dir[1024], name[64];
    const char *work = s->in->work_dir;
    if (!work)
        return distil(s, full, NULL, piece, steps, out, e);
    snprintf(name, sizeof name, "%s.done", piece);
    path_join(done, work, name);
    if (file_exists(done))
        return read_done(done, out, e);
    path_join(dir, work, keep ? keep : piece);
    TRY(mkdir_p(dir, e));
    TRY(distil(s, full, dir, piece, steps, out, e));
    TRY(write_done(done, out, e));
    return keep ? 0 : remove_tree(dir, e);
}

/* Low = the set is good. */
static double loss_of(const struct s2 *s, const struct trial *t)
{
    return s->t->train_loss ? t->loss : t->heldout[s->in->positions == POS_ANSWERS];
}

static void note(struct s2 *s, int64_t round, int layer, const struct trial *t)
{
    if (s->table.len == 0)
        str_puts(&s->table, "round\tlayer\theldout_kl\theldout_kl_answers\ttrain_loss\ttokens\n");
    str_printf(&s->table, "%" PRId64 "\t%d\t%.9g\t%.9g\t%.9g\t%" PRId64 "\n", round, layer, t->heldout[0], t->heldout[1], t->loss,
               t->tokens);
}

static void bill(struct s2 *s, const struct trial *t)
{
    s->tokens += t->tokens;
    s->flops_forward += t->flops_forward;
    s->flops_backward += t->flops_backward;
}

static int stop_asked(struct err *e)
{
    return interrupted() ? ERR(e, E_INTERRUPTED, "interrupted between layers; run the same command again to go on") : 0;
}

/* ---- one-shot ranking, in rounds ---- */

double sets_overlap(const bool *a, const bool *b, int layers)
{
    int n = 0, same = 0;
    for (int l = 0; l < layers; l++) {
        n += a[l];
        same += a[l] && b[l];
    }
    return n ? (double)same / n : 1;
}

static bool excluded(const struct s2 *s, int l)
{
    return s->in->exclude && s->in->exclude[l];
}

static int one_layer(struct s2 *s, int64_t round, int64_t rounds, int64_t steps, int l, struct trial *t, struct err *e)
{
    bool full[MAX_LAYERS];
    char piece[64], keep[64];
    for (int j = 0; j < s->in->layers; j++)
        full[j] = (j == l) != s->removal;
    snprintf(piece, sizeof piece, "%s-layer-%d-round-%" PRId64, s->removal ? "gr" : "ga", l, round);
    snprintf(keep, sizeof keep, "layer-%d", l);
    return trial(s, full, piece, rounds > 1 ? keep : NULL, steps, t, e);
}

static void top_set(const struct s2 *s, const double *score, bool *set)
{
    struct selection tmp = {.layers = s->in->layers};
    memcpy(tmp.score, score, sizeof(double) * (size_t)s->in->layers);
    selection_top(&tmp, s->in->budget, s->in->exclude);
    for (int l = 0; l < s->in->layers; l++)
        set[l] = tmp.kind[l] == MIX_FULL;
}

/* Scores of excluded layers: the lowest of the others; they are not computed. */
static void fill_excluded(const struct s2 *s, double *score)
{
    double low = INFINITY;
    for (int l = 0; l < s->in->layers; l++)
        if (!excluded(s, l))
            low = fmin(low, score[l]);
    for (int l = 0; l < s->in->layers; l++)
        if (excluded(s, l))
            score[l] = isfinite(low) ? low : 0;
}

static int one_shot(struct s2 *s, struct selection *out, struct err *e)
{
    int64_t rounds = MAX(s->t->rounds, 1), steps = train_steps(s->in->data, 0, s->row_hi, s->t->tokens, s->t->batch), ran = 0;
    struct trial t[MAX_LAYERS];
    bool now[MAX_LAYERS] = {0}, before[MAX_LAYERS] = {0}, stop = false;
    for (int64_t r = 0; r < rounds && !stop; r++) {
        for (int l = 0; l < s->in->layers; l++) {
            if (excluded(s, l))
                continue;
            TRY(stop_asked(e));
            TRY(one_layer(s, r, rounds, CEIL_DIV(steps * (r + 1), rounds), l, &t[l], e));
            note(s, r, l, &t[l]);
            out->score[l] = (s->removal ? 1 : -1) * loss_of(s, &t[l]);
        }
        fill_excluded(s, out->score);
        ran = r + 1;
        memcpy(before, now, sizeof now);
        top_set(s, out->score, now);
        double same = sets_overlap(now, before, s->in->layers);
        if (rounds > 1 && r > 0)
            log_info("%s: round %" PRId64 " of %" PRId64 ": %.0f %% of the %d layers as in the round before",
                     s->removal ? "gr-s2" : "ga-s2", r + 1, rounds, 100 * same, s->in->budget);
        stop = s->t->stop_overlap > 0 && r > 0 && same >= s->t->stop_overlap;
    }
    for (int l = 0; l < s->in->layers; l++)
        if (!excluded(s, l))
            bill(s, &t[l]);
    if (rounds > 1) {
        char text[64];
        snprintf(text, sizeof text, "%" PRId64 " of %" PRId64 " rounds", ran, rounds);
        variant_add(out, text);
    }
    selection_top(out, s->in->budget, s->in->exclude);
    return 0;
}

/* ---- sequential: after each choice the others are scored again ---- */

/* Removal takes layers away until `budget` are left; addition adds. The layer chosen in each step gets the next rank; those that are
 * left over keep the order of the last step. */
static int sequential(struct s2 *s, struct selection *out, struct err *e)
{
    int L = s->in->layers, n = 0, ranks = 0, order[MAX_LAYERS]; /* order: the layers as they were chosen */
    int64_t steps = train_steps(s->in->data, 0, s->row_hi, s->t->tokens, s->t->batch);
    bool full[MAX_LAYERS], open[MAX_LAYERS];
    double last[MAX_LAYERS] = {0};
    for (int l = 0; l < L; l++) {
        full[l] = s->removal && !excluded(s, l);
        open[l] = !excluded(s, l);
        n += open[l];
    }
    int take = s->removal ? n - s->in->budget : s->in->budget;
    for (int k = 0; k < take; k++) {
        int best = -1;
        for (int l = 0; l < L; l++) {
            char piece[64];
            struct trial t;
            if (!open[l])
                continue;
            TRY(stop_asked(e));
            full[l] = !s->removal;
            snprintf(piece, sizeof piece, "%s-step-%d-layer-%d", s->removal ? "gr" : "ga", k, l);
            TRY(trial(s, full, piece, NULL, steps, &t, e));
            full[l] = s->removal;
            note(s, k, l, &t);
            bill(s, &t);
            last[l] = loss_of(s, &t);
            if (best < 0 || last[l] < last[best] || (s->removal && last[l] == last[best])) /* ties keep the lower index */
                best = l;
        }
        open[best] = false;
        full[best] = !s->removal;
        order[ranks++] = best;
    }
    while (ranks < n) { /* the order of the last step */
        int best = -1;
        for (int l = 0; l < L; l++)
            if (open[l] && (best < 0 || last[l] < last[best] || (s->removal && last[l] == last[best])))
                best = l;
        open[best] = false;
        order[ranks++] = best;
    }
    for (int i = 0; i < n; i++)
        out->score[order[i]] = s->removal ? i : n - i; /* removed first = least wanted */
    fill_excluded(s, out->score);
    variant_add(out, "sequential");
    selection_top(out, s->in->budget, s->in->exclude);
    return 0;
}

int s2_pick(const struct select_input *in, bool removal, struct selection *out, struct err *e)
{
    struct s2 s = {.in = in, .t = in->train, .removal = removal};
    char path[1024];
    TRY(select_train_check(in, &s.row_hi, e));
    if (s.t->sequential && s.t->rounds > 1)
        return ERR(e, E_USAGE, "select: sequential scoring and scoring in rounds exclude each other");
    if (s.t->rounds > 1 && !in->work_dir)
        return ERR(e, E_USAGE, "select: scoring in rounds needs a work folder for the layers' states");
    if (s.t->rounds > 1 && s.t->tokens == 0)
        return ERR(e, E_USAGE, "select: %" PRId64 " rounds of 0 tokens", s.t->rounds);
    if (s.t->stop_overlap < 0 || s.t->stop_overlap > 1 || (s.t->stop_overlap > 0 && s.t->rounds < 2))
        return ERR(e, E_USAGE, "select: stopping at an overlap of %g (0..1) needs at least two rounds (%" PRId64 " given)",
                   s.t->stop_overlap, s.t->rounds);
    if (s.t->train_loss && (s.t->tokens == 0 || s.t->rounds > 1))
        return ERR(e, E_USAGE, "select: the training loss ranks after one round with tokens only");
    if (in->positions == POS_ANSWERS)
        variant_add(out, "positions=answers");
    int rc = s.t->sequential ? sequential(&s, out, e) : one_shot(&s, out, e);
    if (rc == 0 && in->out_dir)
        rc = file_write(path_join(path, in->out_dir, "trials.tsv"), str_c(&s.table), s.table.len, e);
    str_free(&s.table);
    out->has_score = true;
    out->tokens = s.tokens;
    out->flops_forward = s.flops_forward;
    out->flops_backward = s.flops_backward;
    return rc;
}
