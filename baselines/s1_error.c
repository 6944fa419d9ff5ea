/* The hidden-state signal of GA-S1 and GR-S1 [selectors.md B.8, proposed]: error of the post-mixer stream of one-layer changes, each
 * student on its own stream. */
#include <stdlib.h>
#include <string.h>

#include "baselines/trained.h"
#include "core/prog.h"
#include "core/prov.h"
#include "kernels/ops.h"

struct s1 {
    struct backend *be;
    struct model *teacher, *student; /* student: both mixers in every layer */
    struct batch batch;
    struct acts t_acts, s_acts;
    struct view target;              /* [L, R, D] the teacher's post-mixer stream */
    struct view keep;                /* [L, R, D] layer inputs of the run that the others start from */
    struct view u, loss, w, x;       /* x: borrowed, the input of the layer that runs */
    float *host;                     /* [R] losses */
    bool *counts;                    /* [R] */
    int64_t L, D, each;              /* each = max rows * D */
    bool teacher_runs;               /* its post-mixer stream is kept, not compared */
    bool keep_inputs;
    double *sum;                     /* [L] of the run in progress */
    struct err hook_err;
};

static void on_stream(void *ctx, int64_t i, struct view x)
{
    struct s1 *s = ctx;
    s->x = x;
    if (s->keep_inputs && i < s->L)
        be_copy(s->be, view_at(s->keep, i * s->each, x.n), x);
}

static void on_mixer(void *ctx, int64_t l, struct view h, struct view y)
{
    struct s1 *s = ctx;
    int64_t R = s->batch.seqs.rows, n = R * s->D;
    UNUSED(h);
    struct view target = view_at(s->target, l * s->each, n), u = s->teacher_runs ? target : view_at(s->u, 0, n);
    be_mix(s->be, &(struct op_mix){.y = u, .x = {view_at(s->x, 0, n), view_at(y, 0, n)}, .p = {1, 1}, .count = 2, .n = n});
    if (s->teacher_runs)
        return;
    be_align_loss(s->be, &(struct op_align_loss){.loss = view_at(s->loss, 0, R), .s = u, .t = target, .w = view_at(s->w, 0, R), .rows = R,
                                                 .dim = s->D, .squared = true});
    if (get_f32(s->be, s->host, view_at(s->loss, 0, R), &s->hook_err) != 0)
        return;
    for (int64_t r = 0; r < R; r++)
        s->sum[l] += s->counts[r] ? (double)s->host[r] : 0;
}

static void s1_close(struct s1 *s)
{
    if (s->batch.be)
        batch_close(&s->batch);
    if (s->t_acts.layer)
        acts_close(&s->t_acts);
    if (s->s_acts.layer)
        acts_close(&s->s_acts);
    struct view *v[] = {&s->target, &s->keep, &s->u, &s->loss, &s->w};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        be_view_free(s->be, v[i]);
    if (s->student)
        model_close(s->student);
    free(s->host);
    free(s->counts);
}

static int s1_open(struct s1 *s, const struct select_input *in, struct err *e)
{
    unsigned ops[MAX_LAYERS];
    int64_t R = in->micro * in->data->seq;
    *s = (struct s1){.be = in->be, .teacher = in->teacher, .L = in->teacher->cfg.L, .D = in->teacher->cfg.d,
                     .each = R * in->teacher->cfg.d};
    for (int64_t l = 0; l < s->L; l++)
        ops[l] = MIX_BIT(MIX_FULL) | MIX_BIT(MIX_GDN);
    struct acts_opts ao = {.rows = R, .seqs = (int32_t)in->micro};
    struct assemble_opts as = {.ops = ops};
    s->host = malloc((size_t)R * sizeof *s->host);
    s->counts = malloc((size_t)R * sizeof *s->counts);
    if (!s->host || !s->counts)
        return err_nomem(e, (size_t)R * 5, "losses");
    if (in->data->vocab > in->teacher->cfg.N)
        return ERR(e, E_INPUT, "'%s' was made for a vocabulary of %" PRId64 ", the model has %" PRId64, in->data->dir, in->data->vocab,
                   in->teacher->cfg.N);
    return model_assemble(&s->student, in->teacher, in->lin, &as, e) || batch_open(&s->batch, in->be, R, (int32_t)in->micro, e) ||
        acts_open(&s->t_acts, in->teacher, &ao, e) || acts_open(&s->s_acts, s->student, &ao, e) ||
        be_view(in->be, in->be->act, s->L * s->each, &s->target, e) || be_view(in->be, in->be->act, s->L * s->each, &s->keep, e) ||
        be_view(in->be, in->be->act, s->each, &s->u, e) || be_view(in->be, in->be->stat, R, &s->loss, e) ||
        be_view(in->be, in->be->stat, R, &s->w, e) ? -1 : 0;
}

static int set_rows(struct s1 *s, const struct select_input *in, int64_t first, int n, double *counted, struct err *e)
{
    const int32_t *tok[64];
    int32_t len[64];
    const struct shard *d = in->data;
    for (int i = 0; i < n; i++) {
        tok[i] = d->ids + (first + i) * d->seq;
        len[i] = d->len[first + i];
    }
    TRY(batch_set(&s->batch, n, tok, len, NULL, in->teacher->cfg.N, e));
    for (int i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++) {
            bool c = stream_counts(d, first + i, t, in->positions);
            s->counts[s->batch.seqs.q_off[i] + t] = c;
            *counted += c;
        }
    return 0;
}

static int forward(struct s1 *s, struct model *m, struct acts *a, int64_t first, double *sum, struct err *e)
{
    struct view hidden;
    struct fwd_opts o = {.ctx = s, .on_mixer = on_mixer, .on_stream = on_stream, .first = first};
    if (first > 0)
        o.x0 = view_at(s->keep, first * s->each, s->batch.seqs.rows * s->D);
    s->sum = sum;
    TRY(model_fwd(m, a, &s->batch, &o, &hidden, e));
    if (s->hook_err.code) {
        *e = s->hook_err;
        return -1;
    }
    return be_sync(s->be, e);
}

static int set_kinds(struct s1 *s, bool removal, int64_t changed, struct err *e)
{
    for (int64_t l = 0; l < s->L; l++)
        TRY(model_set_ops(s->student, l, MIX_BIT((l == changed) == removal ? MIX_GDN : MIX_FULL), NULL, 0, e));
    return 0;
}

/* One micro-batch: the teacher, the run that all share up to their change (removal: the teacher itself), and each change from its layer
 * on. base [L], sum [L][L]: per layer. */
static int one_batch(struct s1 *s, bool removal, double *base, double *sum, int64_t *tokens, struct err *e)
{
    s->teacher_runs = true;
    s->keep_inputs = removal;
    TRY(forward(s, s->teacher, &s->t_acts, 0, NULL, e));
    *tokens += s->batch.seqs.rows;
    s->teacher_runs = false;
    if (!removal) {
        s->keep_inputs = true;
        TRY(set_kinds(s, false, -1, e));
        TRY(forward(s, s->student, &s->s_acts, 0, base, e));
        *tokens += s->batch.seqs.rows;
    }
    s->keep_inputs = false;
    for (int64_t l = 0; l < s->L; l++) {
        TRY(set_kinds(s, removal, l, e));
        TRY(forward(s, s->student, &s->s_acts, l, sum + l * s->L, e));
        *tokens += s->batch.seqs.rows;
    }
    return interrupted() ? ERR(e, E_INTERRUPTED, "interrupted while scoring layers") : 0;
}

int s1_errors(const struct select_input *in, bool removal, double *error, int64_t *tokens, struct err *e)
{
    struct s1 s;
    struct prog bar;
    double counted = 0;
    int64_t L = in->teacher->cfg.L;
    *tokens = 0;
    int rc = s1_open(&s, in, e);
    double *sum = calloc((size_t)(L * (L + 1)), sizeof *sum), *base = sum ? sum + L * L : NULL;
    if (rc == 0 && !sum)
        rc = err_nomem(e, (size_t)(L * (L + 1)) * sizeof *sum, "errors");
    prog_start(&bar, "layer errors", "tok", (in->row_hi - in->row_lo) * in->data->seq * (L + 1 + !removal));
    for (int64_t r = in->row_lo; rc == 0 && r < in->row_hi; r += in->micro) {
        rc = set_rows(&s, in, r, (int)MIN(in->micro, in->row_hi - r), &counted, e) || one_batch(&s, removal, base, sum, tokens, e);
        prog_update(&bar, *tokens, NULL);
    }
    prog_end(&bar);
    if (rc == 0 && counted == 0)
        rc = ERR(e, E_USAGE, "select: no position counts in rows %" PRId64 "..%" PRId64, in->row_lo, in->row_hi);
    for (int64_t l = 0; rc == 0 && l < L; l++) { /* before the change a run is the shared one */
        error[l] = 0;
        for (int64_t j = 0; j < L; j++)
            error[l] += (j < l ? base[j] : sum[l * L + j]) / (counted * (double)s.D);
    }
    free(sum);
    s1_close(&s);
    return rc ? -1 : 0;
}
