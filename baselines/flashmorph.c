/*
 * FlashMorph: one gate a layer between attention (1) and its linear mixer (0), trained jointly on retrieval data with a pull towards
 * linear; the K largest gates stay Full [selectors.md B.10]. Proposed where the source is silent: the mixture's own stream feeds the
 * next layer, targets come from a pass of the teacher alone, gates are clamped to 0..1 after every update, Adam 0.9/0.95 without decay,
 * cosine from the learning rate to a tenth of it. Answer positions are those whose next token belongs to an answer; rows without an
 * answer are not used. `plain_text` is the paper's control: text in place of retrieval data, every position counts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"
#include "core/fs.h"
#include "core/prog.h"
#include "core/prov.h"
#include "kernels/ops.h"

/* ---- one gradient ---- */

static struct view target_of(const struct morph *m, int64_t l)
{
    return view_at(m->target, l * m->max_rows * m->D, m->batch.seqs.rows * m->D);
}

static void keep_target(void *ctx, int64_t l, struct view h, struct view y)
{
    struct morph *m = ctx;
    UNUSED(h);
    be_copy(m->be, target_of(m, l), view_at(y, 0, m->batch.seqs.rows * m->D));
}

/* Loss of layer l; its gradient takes the target's place, for the backward to inject. */
static void compare(void *ctx, int64_t l, struct view h, struct view y)
{
    struct morph *m = ctx;
    int64_t R = m->batch.seqs.rows;
    UNUSED(h);
    be_align_loss(m->be, &(struct op_align_loss){.loss = view_at(m->loss, 0, R), .ds = m->grad ? view_at(m->ds, 0, R * m->D) : NO_VIEW,
                                                 .s = view_at(y, 0, R * m->D), .t = target_of(m, l), .w = view_at(m->w, 0, R), .rows = R,
                                                 .dim = m->D, .squared = true});
    if (get_f64(m->be, m->host, view_at(m->loss, 0, R), &m->hook_err) != 0)
        return;
    for (int64_t r = 0; r < R; r++)
        m->align += (double)m->weight[r] * m->host[r];
    if (m->grad)
        be_copy(m->be, target_of(m, l), view_at(m->ds, 0, R * m->D));
}

static bool inject(void *ctx, int64_t l, struct view dy)
{
    struct morph *m = ctx;
    be_copy(m->be, view_at(dy, 0, m->batch.seqs.rows * m->D), target_of(m, l));
    return true;
}

int morph_open(struct morph *m, struct model *teacher, const struct linset *lin, const struct shard *shard, int64_t micro,
               double gate_weight, struct err *e)
{
    unsigned ops[MAX_LAYERS];
    struct backend *be = teacher->be;
    int64_t R = micro * shard->seq, L = teacher->cfg.L, D = teacher->cfg.d;
    *m = (struct morph){.be = be, .shard = shard, .teacher = teacher, .max_rows = R, .L = L, .D = D, .gate_weight = gate_weight};
    if (shard->vocab > teacher->cfg.N)
        return ERR(e, E_INPUT, "'%s' was made for a vocabulary of %" PRId64 ", the model has %" PRId64, shard->dir, shard->vocab,
                   teacher->cfg.N);
    for (int64_t l = 0; l < L; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN);
    struct acts_opts ta = {.rows = R, .seqs = (int32_t)micro}, sa = {.rows = R, .seqs = (int32_t)micro, .train = true};
    m->host = malloc((size_t)R * sizeof *m->host);
    m->weight = malloc((size_t)R * sizeof *m->weight);
    int rc = m->host && m->weight ? 0 : err_nomem(e, (size_t)R * 12, "losses");
    if (rc == 0)
        rc = model_assemble(&m->super, teacher, lin, &(struct assemble_opts){.ops = ops}, e) ||
            batch_open(&m->batch, be, R, (int32_t)micro, e) || acts_open(&m->t_acts, teacher, &ta, e) ||
            acts_open(&m->s_acts, m->super, &sa, e) || be_view(be, be->act, L * R * D, &m->target, e) ||
            be_view(be, be->act, R * D, &m->ds, e) || be_view(be, be->stat, R, &m->w, e) || be_view(be, be->stat, R, &m->loss, e) ||
            be_view(be, be->stat, L * MIX_N_KINDS, &m->dp, e);
    if (rc != 0)
        morph_close(m);
    return rc ? -1 : 0;
}

void morph_close(struct morph *m)
{
    if (!m->be)
        return;
    if (m->batch.be)
        batch_close(&m->batch);
    if (m->t_acts.layer)
        acts_close(&m->t_acts);
    if (m->s_acts.layer)
        acts_close(&m->s_acts);
    struct view *v[] = {&m->target, &m->ds, &m->w, &m->loss, &m->dp};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(m->be, v[i]);
    if (m->super)
        model_close(m->super);
    free(m->host);
    free(m->weight);
    *m = (struct morph){0};
}

double morph_positions(const struct shard *s, int64_t row)
{
    return stream_weight(s, row, POS_ANSWERS);
}

static int set_rows(struct morph *m, const int64_t *rows, int n, double positions, struct err *e)
{
    const int32_t *tok[64];
    int32_t len[64];
    for (int i = 0; i < n; i++) {
        tok[i] = m->shard->ids + rows[i] * m->shard->seq;
        len[i] = m->shard->len[rows[i]];
    }
    TRY(batch_set(&m->batch, n, tok, len, NULL, m->teacher->cfg.N, e));
    double each = positions > 0 ? 1 / ((double)m->L * positions) : 0;
    for (int i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++)
            m->weight[m->batch.seqs.q_off[i] + t] =
                (float)(stream_counts(m->shard, rows[i], t, m->every ? POS_ALL : POS_ANSWERS) ? each : 0);
    return put_f32(m->be, view_at(m->w, 0, m->batch.seqs.rows), m->weight, e);
}

int morph_gradient(struct morph *m, const int64_t *rows, int n, double positions, const double *gate, double *loss, double *grad,
                   struct err *e)
{
    struct view hidden;
    double dp[MAX_LAYERS * MIX_N_KINDS];
    m->hook_err = (struct err)ERR_INIT;
    m->align = 0;
    m->grad = grad != NULL;
    for (int64_t l = 0; l < m->L; l++) {
        double p[MIX_N_KINDS] = {[MIX_FULL] = gate[l], [MIX_GDN] = 1 - gate[l]};
        TRY(model_set_ops(m->super, l, MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN), p, 0, e));
    }
    TRY(set_rows(m, rows, n, positions, e));
    struct fwd_opts to = {.ctx = m, .on_mixer = keep_target}, so = {.save = m->grad, .ctx = m, .on_mixer = compare};
    double f0 = m->be->flops;
    TRY(model_fwd(m->teacher, &m->t_acts, &m->batch, &to, &hidden, e));
    TRY(model_fwd(m->super, &m->s_acts, &m->batch, &so, &hidden, e));
    m->flops_forward += m->be->flops - f0;
    if (m->hook_err.code) {
        *e = m->hook_err;
        return -1;
    }
    *loss += m->align;
    if (!m->grad)
        return be_sync(m->be, e);
    be_zero(m->be, m->dp);
    struct bwd_opts bo = {.dp = m->dp, .ctx = m, .inject = inject};
    TRY(model_bwd(m->super, &m->s_acts, &m->batch, NO_VIEW, &bo, e));
    TRY(get_f64(m->be, dp, m->dp, e));
    for (int64_t l = 0; l < m->L; l++)
        grad[l] += dp[l * MIX_N_KINDS + MIX_FULL] - dp[l * MIX_N_KINDS + MIX_GDN];
    return be_sync(m->be, e);
}

/* ---- training of the gates ---- */

/* Positions of a row that the loss counts. */
static double counted(const struct select_input *in, int64_t row)
{
    return in->plain_text ? stream_weight(in->data, row, POS_ALL) : morph_positions(in->data, row);
}

struct tuner {
    const struct select_input *in;
    const struct select_train *t;
    struct morph m;
    struct row_order order; /* over `row` */
    int64_t *row, n_rows;   /* rows with answers */
    int64_t steps, step, tokens;
    double a[MAX_LAYERS], m1[MAX_LAYERS], m2[MAX_LAYERS];
    double flops, forward;  /* of earlier processes, less the counters when this one began */
    struct str log;
};

static double rate(const struct tuner *t, int64_t step)
{
    double hi = t->t->lr > 0 ? t->t->lr : 2e-2, lo = hi / 10, f = t->steps > 1 ? (double)step / (double)(t->steps - 1) : 0;
    return lo + (hi - lo) * 0.5 * (1 + cos(3.14159265358979323846 * f));
}

static bool fixed(const struct tuner *t, int64_t l)
{
    return t->in->exclude && t->in->exclude[l];
}

static int save(struct tuner *t, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    if (!t->in->work_dir)
        return 0;
    TRY(file_write(path_join(path, t->in->work_dir, "gates.tsv"), str_c(&t->log), t->log.len, e));
    str_printf(&s, "%" PRId64 " %" PRId64 " %" PRId64 " %a %a\n", t->step, t->tokens, t->m.L, t->flops + t->in->be->flops,
               t->forward + t->m.flops_forward);
    for (int64_t l = 0; l < t->m.L; l++)
        str_printf(&s, "%a %a %a\n", t->a[l], t->m1[l], t->m2[l]);
    int rc = str_ok(&s, "gates", e) || file_write(path_join(path, t->in->work_dir, "gates.state"), str_c(&s), s.len, e);
    str_free(&s);
    return rc ? -1 : 0;
}

static int load_log(struct tuner *t, struct err *e)
{
    char path[1024];
    struct str all = STR_INIT;
    if (!file_exists(path_join(path, t->in->work_dir, "gates.tsv")))
        return 0;
    TRY(file_read(path, (size_t)256 << 20, &all, e));
    for (const char *p = str_c(&all); *p;) {
        size_t n = strcspn(p, "\n");
        if (p[n] && (p == str_c(&all) || strtoll(p, NULL, 10) <= t->step))
            str_add(&t->log, p, n + 1);
        p += n + (p[n] == '\n');
    }
    str_free(&all);
    return 0;
}

static int load(struct tuner *t, struct err *e)
{
    char path[1024];
    struct str s = STR_INIT;
    if (!t->in->work_dir || !file_exists(path_join(path, t->in->work_dir, "gates.state")))
        return 0;
    TRY(file_read(path, 1 << 20, &s, e));
    long long step = 0, tokens = 0, L = 0;
    double flops, forward;
    int used = 0;
    const char *p = str_c(&s);
    bool ok = sscanf(p, "%lld %lld %lld %la %la\n%n", &step, &tokens, &L, &flops, &forward, &used) == 5 && L == t->m.L;
    for (int64_t l = 0; ok && l < t->m.L; l++) {
        p += used;
        ok = sscanf(p, "%la %la %la\n%n", &t->a[l], &t->m1[l], &t->m2[l], &used) == 3;
    }
    str_free(&s);
    if (!ok)
        return ERR(e, E_INPUT, "'%s' is not the state of these gates; remove the run's folder to start again", path);
    t->step = step;
    t->tokens = tokens;
    t->flops += flops;
    t->forward += forward;
    return load_log(t, e);
}

static void log_step(struct tuner *t, double align, double sum)
{
    if (t->log.len == 0) {
        str_puts(&t->log, "step\tlr\talign\tgates");
        for (int64_t l = 0; l < t->m.L; l++)
            str_printf(&t->log, "\tgate%" PRId64, l);
        str_puts(&t->log, "\n");
    }
    str_printf(&t->log, "%" PRId64 "\t%.6g\t%.9g\t%.6g", t->step, rate(t, t->step - 1), align, sum);
    for (int64_t l = 0; l < t->m.L; l++)
        str_printf(&t->log, "\t%.6f", t->a[l]);
    str_puts(&t->log, "\n");
}

static int update(struct tuner *t, struct err *e)
{
    int64_t rows[64], B = t->t->batch;
    double positions = 0, align = 0, grad[MAX_LAYERS] = {0}, sum = 0, s1 = (double)(t->step + 1), lr = rate(t, t->step);
    for (int64_t i = 0; i < B; i++)
        positions += counted(t->in, t->row[order_row(&t->order, t->step * B + i)]);
    for (int64_t i = 0; i < B; i += t->in->micro) {
        int n = (int)MIN(t->in->micro, B - i);
        for (int k = 0; k < n; k++) {
            rows[k] = t->row[order_row(&t->order, t->step * B + i + k)];
            t->tokens += t->in->data->len[rows[k]];
        }
        TRY(morph_gradient(&t->m, rows, n, positions, t->a, &align, grad, e));
    }
    for (int64_t l = 0; l < t->m.L; l++) {
        if (fixed(t, l))
            continue;
        double g = grad[l] + t->m.gate_weight;
        if (!finite_f64(g))
            return ERR(e, E_NUMERIC,
                       "flashmorph: update %" PRId64 " of %" PRId64 ": the gradient on the gate of layer %" PRId64 " is not finite",
                       t->step + 1, t->steps, l);
        sum += t->a[l];
        t->m1[l] = 0.9 * t->m1[l] + 0.1 * g;
        t->m2[l] = 0.95 * t->m2[l] + 0.05 * g * g;
        double moved = t->a[l] - lr * (t->m1[l] / (1 - pow(0.9, s1))) / (sqrt(t->m2[l] / (1 - pow(0.95, s1))) + 1e-8);
        t->a[l] = moved < 0 ? 0 : moved > 1 ? 1 : moved;
    }
    t->step++;
    log_step(t, align, sum);
    return 0;
}

static int open_tuner(struct tuner *t, int64_t row_hi, struct err *e)
{
    const struct select_input *in = t->in;
    int64_t with = 0;
    double len = 0;
    t->row = malloc((size_t)row_hi * sizeof *t->row);
    if (!t->row)
        return err_nomem(e, (size_t)row_hi * sizeof *t->row, "rows");
    for (int64_t r = 0; r < row_hi; r++)
        if (counted(in, r) > 0) {
            t->row[with++] = r;
            len += in->data->len[r];
        }
    if (with == 0)
        return ERR(e, E_USAGE,
                   "flashmorph: '%s' has no answer tokens; it needs retrieval data (ruler gen or data passkey, then data pack --ruler)",
                   in->data->dir);
    t->n_rows = with;
    t->steps = t->t->tokens == 0 ? 0 : MAX((int64_t)1, (int64_t)floor((double)t->t->tokens / (len / (double)with * (double)t->t->batch) +
                                               0.5));
    for (int64_t l = 0; l < in->layers; l++)
        t->a[l] = !fixed(t, l);
    TRY(morph_open(&t->m, in->teacher, in->lin, in->data, MIN(in->micro, t->t->batch), t->t->gate_weight, e));
    t->m.every = in->plain_text;
    TRY(order_init(&t->order, in->seed, 0, with, e));
    t->flops = -in->be->flops;
    return load(t, e);
}

static int tune(struct tuner *t, struct err *e)
{
    struct prog bar;
    int rc = 0;
    prog_start(&bar, "gates", "step", t->steps);
    while (rc == 0 && t->step < t->steps) {
        rc = update(t, e);
        bool last = t->step == t->steps, stop = !last && interrupted();
        prog_update(&bar, t->step, NULL);
        if (rc == 0 && (last || stop || (t->t->ckpt_every && t->step % t->t->ckpt_every == 0)))
            rc = save(t, e);
        if (rc == 0 && stop)
            rc = ERR(e, E_INTERRUPTED,
                     "flashmorph: interrupted after update %" PRId64 " of %" PRId64 "; run the same command again to go on", t->step,
                     t->steps);
    }
    prog_end(&bar);
    return rc ? -1 : 0;
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct tuner t = {.in = in, .t = in->train};
    struct select_input all = *in;
    int64_t row_hi;
    char path[1024];
    all.positions = POS_ALL; /* the loss is on answers whatever the option says */
    TRY(select_train_check(&all, &row_hi, e));
    int rc = open_tuner(&t, row_hi, e) || tune(&t, e);
    if (rc == 0 && in->out_dir)
        rc = file_write(path_join(path, in->out_dir, "gates.tsv"), str_c(&t.log), t.log.len, e);
    for (int l = 0; l < in->layers; l++)
        out->score[l] = t.a[l];
    out->has_score = true;
    if (in->plain_text)
        snprintf(out->variant, sizeof out->variant, "plain text");
    out->tokens = t.tokens;
    out->flops_forward = t.forward + t.m.flops_forward;
    out->flops_backward = t.flops + in->be->flops - out->flops_forward;
    selection_top(out, in->budget, in->exclude);
    if (t.order.perm)
        order_free(&t.order);
    morph_close(&t.m);
    str_free(&t.log);
    free(t.row);
    return rc ? -1 : 0;
}

const struct selector sel_flashmorph = {.name = "flashmorph", .title = "FlashMorph",
                                        .about = "gates between attention and linear mixer, trained jointly on answer tokens; the largest "
                                        "stay Full", .needs = "teacher, Stage 1, retrieval data",
                                        .cost = "gate training (20M tokens published)",
                                        .source = "arXiv 2606.30562; stream, clamp and schedule proposed here", .certain = false,
                                        .needs_teacher = true, .needs_linear = true, .needs_data = true, .trains = true, .version = 1,
                                        .pick = pick};
