/*
 * PostNAS placement, the small version [selectors.md B.12, proposed]: the Stage-1 linear mixers go on training inside a supernet whose
 * layers are attention or linear at random (each with probability 1/2; every fourth pass is all-linear), everything else frozen, on
 * KL(teacher || path) + mean square of the final hidden states' difference; then a beam search adds one Full layer at a time to the
 * all-linear path by held-out KL. Not nested: each size has its own best set (beam.tsv).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"
#include "core/fs.h"
#include "core/prog.h"
#include "core/prov.h"
#include "core/rng.h"
#include "kernels/ops.h"
#include "model/trainer.h"

enum { SANDWICH = 4 };

struct super {
    const struct select_input *in;
    const struct select_train *t;
    struct model *m;
    struct stream st;
    struct acts acts;
    struct view dh, loss, w; /* of the hidden states' difference */
    float *host;             /* [2 rows] */
    double keep[2];          /* checkpointed: passes made, forward FLOPs */
    double flops_forward, flops_backward; /* of the beam search too */
    int64_t tokens, eval_tokens, row_hi;
    struct prog bar;
};

static int set_path(struct super *s, const bool *full, struct err *e)
{
    for (int l = 0; l < s->in->layers; l++)
        TRY(model_set_ops(s->m, l, MIX_BIT(full[l] ? MIX_FULL : MIX_GDN), NULL, 0, e));
    return 0;
}

/* ---- supernet ---- */

static double row_weight(void *ctx, int64_t row)
{
    struct super *s = ctx;
    return stream_weight(s->in->data, row, s->in->positions);
}

static void draw_path(const struct super *s, uint64_t pass, bool *full)
{
    for (int l = 0; l < s->in->layers; l++)
        full[l] = pass % SANDWICH != SANDWICH - 1 && !(s->in->exclude && s->in->exclude[l]) && ctr_uniform(s->in->seed, 0x706174687377ull,
            pass * MAX_LAYERS + (uint64_t)l) < 0.5;
}

/* Mean square over the width of the final hidden states' difference: sum over counted rows in *sum; its gradient times `scale` is added
 * to the stream's dh. */
static int hidden_mse(struct super *s, struct view hidden, double scale, double *sum, struct err *e)
{
    struct backend *be = s->in->be;
    int64_t R = s->st.batch.seqs.rows, D = s->m->cfg.d;
    float *w = s->host, *loss = s->host + s->st.max_rows;
    for (int64_t r = 0; r < R; r++)
        w[r] = s->in->positions == POS_ALL || s->st.host_kl[r] != 0 ? (float)(scale / (double)D) : 0;
    TRY(put_f32(be, view_at(s->w, 0, R), w, e));
    be_align_loss(be, &(struct op_align_loss){.loss = view_at(s->loss, 0, R), .ds = view_at(s->dh, 0, R * D),
                                              .s = view_at(hidden, 0, R * D), .t = view_at(s->st.t_hidden, 0, R * D),
                                              .w = view_at(s->w, 0, R), .rows = R, .dim = D, .squared = true});
    be_axpby(be, &(struct op_axpby){.y = view_at(s->st.dh, 0, R * D), .x = view_at(s->dh, 0, R * D), .a = 1, .b = 1, .n = R * D});
    TRY(get_f32(be, loss, view_at(s->loss, 0, R), e));
    for (int64_t r = 0; r < R; r++)
        *sum += w[r] != 0 ? (double)loss[r] / (double)D : 0;
    return 0;
}

static int micro(void *ctx, const int64_t *rows, int n, double scale, double *loss, struct err *e)
{
    struct super *s = ctx;
    bool full[MAX_LAYERS];
    struct kl_sums k = {0};
    struct view hidden;
    struct fwd_opts fo = {.save = true};
    struct bwd_opts bo = {.wgrad = true};
    double mse = 0, g0 = s->st.flops_forward;
    draw_path(s, (uint64_t)s->keep[0], full);
    TRY(set_path(s, full, e));
    TRY(stream_set(&s->st, rows, n, e));
    double f0 = s->in->be->flops;
    TRY(model_fwd(s->m, &s->acts, &s->st.batch, &fo, &hidden, e));
    s->st.flops_forward += s->in->be->flops - f0;
    TRY(stream_kl(&s->st, s->m, hidden, s->in->positions, true, false, scale, &k, e));
    TRY(hidden_mse(s, hidden, scale, &mse, e));
    TRY(model_bwd(s->m, &s->acts, &s->st.batch, view_at(s->st.dh, 0, s->st.batch.seqs.rows * s->m->cfg.d), &bo, e));
    s->keep[0] += 1;
    s->keep[1] += s->st.flops_forward - g0;
    *loss = (s->in->positions == POS_ALL ? k.all : k.answers) + mse;
    return 0;
}

static int heldout_kl(struct super *s, double *kl, struct err *e)
{
    struct kl_sums k = {0};
    int64_t lo = s->row_hi, hi = s->in->data->rows;
    TRY(stream_eval(&s->st, s->m, &s->acts, lo, hi, s->in->micro, &k, e));
    *kl = kl_of(&k, s->in->positions);
    return 0;
}

static int eval(void *ctx, double *values, struct err *e)
{
    struct super *s = ctx;
    static const bool none[MAX_LAYERS];
    double g0 = s->st.flops_forward;
    TRY(set_path(s, none, e));
    TRY(heldout_kl(s, values, e));
    s->keep[1] += s->st.flops_forward - g0;
    return 0;
}

static int train(struct super *s, struct err *e)
{
    const struct select_input *in = s->in;
    char dir[1024];
    struct train_result r;
    struct train_opts o = {.stage = "supernet", .dir = in->work_dir ? path_join(dir, in->work_dir, "supernet") : NULL,
                           .steps = train_steps(in->data, 0, s->row_hi, s->t->tokens, s->t->batch), .batch = s->t->batch,
                           .micro = MIN(in->micro, s->t->batch), .lr_end = 0.1, .schedule = SCHED_COSINE, .b1 = 0.9, .b2 = 0.95,
                           .eps = 1e-8, .clip = 1, .seed = in->seed, .row_hi = s->row_hi, .ckpt_every = s->t->ckpt_every};
    struct train_loss loss = {.ctx = s, .weight = row_weight, .micro = micro, .eval = eval, .eval_names = {"kl_linear"}, .n_eval = 1,
                              .keep = s->keep, .n_keep = 2};
    if (o.steps == 0)
        return 0;
    o.lr[PG_REST] = o.lr[PG_MIXER] = s->t->lr_mixer > 0 ? s->t->lr_mixer : 1e-3;
    params_set_trainable(&s->m->params, -1, false);
    for (int l = 0; l < in->layers; l++)
        for (int i = 0; i < MIXER_MAX_PARAMS; i++)
            if (s->m->layer[l].lin->p[i])
                s->m->layer[l].lin->p[i]->trainable = true;
    TRY(train_run(in->be, &s->m->params, in->data, &o, &loss, &r, e));
    s->tokens = r.tokens;
    s->flops_forward = s->keep[1];
    s->flops_backward = r.flops - s->keep[1];
    params_set_trainable(&s->m->params, -1, false);
    return 0;
}

/* ---- beam ---- */

static void set_name(const bool *full, int layers, char *out)
{
    for (int l = 0; l < layers; l++)
        out[l] = full[l] ? 'F' : 'L';
    out[layers] = 0;
}

/* A set that an earlier attempt evaluated: its line in the work folder is "SET COST FLOPS". */
static bool known(const struct super *s, const struct str *text, const char *name, double *cost, double *flops)
{
    size_t n = (size_t)s->in->layers;
    for (const char *p = str_c(text); p && *p; p = strchr(p, '\n'), p = p ? p + 1 : NULL)
        if (!strncmp(p, name, n) && p[n] == ' ' && strchr(p, '\n') && sscanf(p + n, "%la %la", cost, flops) == 2)
            return true;
    return false;
}

static int cost_of(void *ctx, const bool *full, double *cost, struct err *e)
{
    struct super *s = ctx;
    char name[MAX_LAYERS + 1], path[1024], line[MAX_LAYERS + 80];
    struct str text = STR_INIT;
    double flops = 0;
    bool have = false;
    set_name(full, s->in->layers, name);
    if (s->in->work_dir && file_exists(path_join(path, s->in->work_dir, "beam.sets"))) {
        TRY(file_read(path, (size_t)64 << 20, &text, e));
        have = known(s, &text, name, cost, &flops);
        str_free(&text);
    }
    if (!have) {
        double f0 = s->in->be->flops;
        TRY(set_path(s, full, e));
        TRY(heldout_kl(s, cost, e));
        flops = s->in->be->flops - f0;
        int n = snprintf(line, sizeof line, "%s %a %a\n", name, *cost, flops);
        if (s->in->work_dir)
            TRY(file_append(path, line, (size_t)n, false, e));
    }
    s->flops_forward += flops;
    for (int64_t r = s->row_hi; r < s->in->data->rows; r++)
        s->eval_tokens += s->in->data->len[r];
    prog_update(&s->bar, s->eval_tokens, NULL);
    return interrupted() ? ERR(e, E_INTERRUPTED, "interrupted between sets of layers; run the same command again to go on") : 0;
}

static int place_beam(struct super *s, struct selection *out, struct err *e)
{
    const struct select_input *in = s->in;
    struct beam_result *b = malloc(sizeof *b);
    struct str table = STR_INIT, set = STR_INIT;
    char path[1024];
    struct beam_problem p = {.layers = in->layers, .width = (int)s->t->beam, .k = in->budget, .exclude = in->exclude, .ctx = s,
                             .cost = cost_of};
    if (!b)
        return err_nomem(e, sizeof *b, "a beam");
    prog_start(&s->bar, "beam search", "tok", 0);
    int rc = beam_search(&p, b, e);
    prog_end(&s->bar);
    str_puts(&table, "size\tkl\tset\n");
    for (int k = 0; rc == 0 && k <= b->k; k++) {
        enum mixer_kind kind[MAX_LAYERS];
        for (int l = 0; l < in->layers; l++)
            kind[l] = b->best[k][l] ? MIX_FULL : MIX_GDN;
        str_clear(&set);
        layers_text(kind, in->layers, &set);
        str_printf(&table, "%d\t%.9g\t%s\n", k, b->cost[k], str_c(&set));
        memcpy(out->kind, kind, sizeof kind[0] * (size_t)in->layers);
    }
    double worst = 0;
    for (int l = 0; rc == 0 && l < in->layers; l++)
        worst = isfinite(b->with[l]) ? fmax(worst, b->with[l]) : worst;
    for (int l = 0; rc == 0 && l < in->layers; l++) /* layers in no set of the final size: behind all others */
        out->score[l] = isfinite(b->with[l]) && b->k > 0 ? -b->with[l] : -2 * worst;
    if (rc == 0 && in->out_dir)
        rc = file_write(path_join(path, in->out_dir, "beam.tsv"), str_c(&table), table.len, e);
    str_free(&table);
    str_free(&set);
    free(b);
    return rc ? -1 : 0;
}

/* ---- */

static int super_open(struct super *s, struct err *e)
{
    const struct select_input *in = s->in;
    unsigned ops[MAX_LAYERS];
    int64_t R = in->micro * in->data->seq, D = in->teacher->cfg.d;
    for (int l = 0; l < in->layers; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN);
    struct assemble_opts as = {.ops = ops, .copy = true};
    struct acts_opts ao = {.rows = R, .seqs = (int32_t)in->micro, .train = s->t->tokens > 0, .wgrad = s->t->tokens > 0};
    s->host = malloc((size_t)R * 2 * sizeof *s->host);
    if (!s->host)
        return err_nomem(e, (size_t)R * 2 * sizeof *s->host, "losses");
    return model_assemble(&s->m, in->teacher, in->lin, &as, e) || stream_open(&s->st, in->be, in->data, in->teacher, in->cache, in->micro,
        1, e) || acts_open(&s->acts, s->m, &ao, e) || be_view(in->be, in->be->act, R * D, &s->dh, e) ||
        be_view(in->be, in->be->stat, R, &s->loss, e) || be_view(in->be, in->be->stat, R, &s->w, e) ? -1 : 0;
}

static void super_close(struct super *s)
{
    struct backend *be = s->in->be;
    stream_close(&s->st);
    if (s->acts.layer)
        acts_close(&s->acts);
    be_view_free(be, &s->dh);
    be_view_free(be, &s->loss);
    be_view_free(be, &s->w);
    if (s->m)
        model_close(s->m);
    free(s->host);
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct super s = {.in = in, .t = in->train};
    TRY(select_train_check(in, &s.row_hi, e));
    if (in->positions == POS_ANSWERS)
        variant_add(out, "positions=answers");
    int rc = super_open(&s, e) || train(&s, e) || place_beam(&s, out, e);
    super_close(&s);
    out->has_score = true;
    out->tokens = s.tokens + s.eval_tokens;
    out->flops_forward = s.flops_forward;
    out->flops_backward = s.flops_backward;
    return rc ? -1 : 0;
}

/* Another budget from an earlier run's beam: the best set of that size, when it went so far. */
static int place(const struct select_input *in, struct selection *out, struct err *e)
{
    char path[1024];
    struct str text = STR_INIT;
    bool found = false;
    if (!in->scores_dir)
        return ERR(e, E_USAGE, "postnas: the sets of other sizes stand in beam.tsv of the run, which is not known here");
    TRY(file_read(path_join(path, in->scores_dir, "beam.tsv"), 1 << 20, &text, e));
    for (char *p = strchr(text.p, '\n'); p && p[1] && !found; p = strchr(p + 1, '\n')) {
        char *end, *tab;
        found = strtol(p + 1, &end, 10) == in->budget && *end == '\t' && (tab = strchr(end + 1, '\t')) != NULL;
        if (!found)
            continue;
        tab[1 + strcspn(tab + 1, "\n")] = 0;
        if (layers_parse(tab + 1, in->layers, out->kind, e) != 0) {
            e->code = E_INPUT;
            str_free(&text);
            return err_wrap(e, "'%s'", path);
        }
    }
    str_free(&text);
    for (int l = 0; found && l < in->layers; l++)
        if (in->exclude && in->exclude[l] && out->kind[l] == MIX_FULL)
            return ERR(e, E_USAGE, "postnas: layer %d is excluded here and in the set of the run that the scores come from; run it anew",
                       l);
    return found ? 0 : ERR(e, E_USAGE, "'%s' holds no set of %d layers: that run stopped at a smaller budget", path, in->budget);
}

const struct selector sel_postnas = {.name = "postnas", .title = "PostNAS placement",
                                     .about = "beam search over sets by held-out KL, in a supernet trained on random paths",
                                     .needs = "teacher, Stage 1, data", .cost = "supernet training, about 8 L K forward sweeps",
                                     .source = "arXiv 2508.15884, placement step; small version proposed here", .certain = false,
                                     .needs_teacher = true, .needs_linear = true, .needs_data = true, .trains = true, .version = 1,
                                     .pick = pick, .place = place};
