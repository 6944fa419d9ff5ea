/* Scores of a folder of predictions, and the paired comparison of two. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/rng.h"
#include "core/stats.h"
#include "ruler/sample.h"

static int grow(struct score_reader *r, struct err *e)
{
    if ((size_t)r->s->n < r->cap)
        return 0;
    size_t cap = r->cap ? 2 * r->cap : 256;
    double *a = realloc(r->s->score, cap * sizeof *a);
    r->s->score = a ? a : r->s->score;
    double *b = realloc(r->s->nlls, cap * sizeof *b);
    r->s->nlls = b ? b : r->s->nlls;
    void *c = realloc(r->sha, cap * sizeof *r->sha);
    r->sha = c ? c : r->sha;
    if (!a || !b || !c)
        return err_nomem(e, cap * 81, "scores");
    r->cap = cap;
    return 0;
}

void score_begin(struct score_reader *r, const struct ruler_task *t, const char *flavour, struct ruler_task_score *s)
{
    *r = (struct score_reader){.t = t, .s = s, .part = ruler_part(t, flavour)};
    snprintf(s->name, sizeof s->name, "%s", t->name);
}

int score_add(struct score_reader *r, const char *pred, size_t n, const char *const *refs, size_t n_refs, const char *sha, double nll,
              int64_t n_tokens, struct err *e)
{
    bool null;
    TRY(grow(r, e));
    int64_t k = r->s->n++;
    r->s->score[k] = ruler_match(pred, n, refs, n_refs, r->part, &null);
    r->s->nulls += null;
    memcpy(r->sha[k], sha, 65);
    if (finite_f64(nll) && n_tokens) {
        r->nll += nll;
        r->tokens += n_tokens;
        r->s->nlls[k] = nll / (double)n_tokens;
    } else {
        r->no_nll = true;
        r->s->nlls[k] = NAN;
    }
    return 0;
}

int score_end(struct score_reader *r, const char *path, struct err *e)
{
    struct ruler_task_score *s = r->s;
    double sum = 0, sq = 0;
    if (!s->n)
        return ERR(e, E_INPUT, "'%s': holds no prediction", path);
    for (int64_t i = 0; i < s->n; i++)
        sum += s->score[i];
    s->mean = sum / (double)s->n;
    for (int64_t i = 0; i < s->n; i++)
        sq += (s->score[i] - s->mean) * (s->score[i] - s->mean);
    s->se = s->n > 1 ? sqrt(sq / (double)(s->n - 1) / (double)s->n) : 0;
    s->nll = r->no_nll || !r->tokens ? NAN : r->nll / (double)r->tokens;
    return 0;
}

bool ruler_part(const struct ruler_task *t, const char *flavour)
{
    return t->kind == K_QA && strcmp(flavour, "lm-eval") != 0;
}

static int one_prediction(void *ctx, int64_t line, const struct jdoc *d, struct err *e)
{
    struct score_reader *r = ctx;
    const char *pred, *sha, *refs[MAX_REFS];
    const json_t *outputs, *nll;
    char what[400];
    int64_t l, tokens;
    size_t n;
    TRY(jget_i64(d, d->root, "", "line", 0, INT64_MAX, &l, e));
    TRY(jget_str(d, d->root, "", "pred", &pred, e));
    TRY(jget_str(d, d->root, "", "prompt_sha256", &sha, e));
    TRY(jget_arr(d, d->root, "", "outputs", &outputs, e));
    TRY(jget_i64(d, d->root, "", "answer_tokens", 0, INT32_MAX, &tokens, e));
    snprintf(what, sizeof what, "%s of '%s': record %" PRId64, d->file, r->t->name, line + 1);
    TRY(refs_of(outputs, what, refs, &n, e));
    if (l != line || strlen(sha) != 64)
        return ERR(e, E_INPUT, "%s is out of order or malformed", what);
    nll = json_object_get(d->root, "answer_nll");
    return score_add(r, pred, json_string_length(json_object_get(d->root, "pred")), refs, n, sha,
                     json_is_number(nll) ? json_number_value(nll) : NAN, tokens, e);
}

/* *sha: the prompt hashes, malloc'ed. */
static int read_task(const char *dir, const struct ruler_task *t, const char *flavour, struct ruler_task_score *s, char (**sha)[65],
                     struct err *e)
{
    char path[1024], sub[64];
    struct score_reader r;
    score_begin(&r, t, flavour, s);
    snprintf(sub, sizeof sub, "%s/predictions.jsonl", t->name);
    int rc = jsonl_each(path_join(path, dir, sub), false, NULL, one_prediction, &r, e);
    *sha = r.sha;
    return rc ? rc : score_end(&r, path, e);
}

static bool known_flavour(const char *f)
{
    return strcmp(f, "compact") == 0 || strcmp(f, "nvidia") == 0 || strcmp(f, "lm-eval") == 0;
}

/* A folder of ruler_run. */
static int own_read(const char *dir, const char *as, struct ruler_scores *out, char (*sha[RULER_MAX_TASKS])[65], struct err *e)
{
    const struct ruler_task *t[RULER_MAX_TASKS];
    struct task_set set;
    char path[1024];
    struct jdoc d = {0};
    const char *flavour;
    size_t n = 0;
    TRY(jdoc_load(&d, path_join(path, dir, "ruler.json"), 1 << 20, e));
    int rc = jget_str(&d, d.root, "", "flavour", &flavour, e);
    if (!rc)
        snprintf(out->flavour, sizeof out->flavour, "%s", as ? as : flavour);
    if (!rc && !known_flavour(out->flavour))
        rc = ERR(e, E_INPUT, "'%s': RULER flavour '%s': there are 'compact', 'nvidia' and 'lm-eval'", path, out->flavour);
    jdoc_free(&d);
    TRY(rc);
    TRY(task_set_of(&set, dir, e));
    rc = tasks_present(&set, dir, "predictions.jsonl", NULL, t, &n, e);
    for (size_t i = 0; !rc && i < n; i++, out->n++)
        rc = read_task(dir, t[i], out->flavour, &out->task[i], &sha[i], e);
    task_set_free(&set);
    return rc;
}

/* Samples are drawn, tasks are not. The interval is Wilson's for as many prompts as would give this standard error, so it stays inside
 * 0..100; where no task varies, for the prompts there are. */
static void overall(struct ruler_scores *s)
{
    double var = 0, each = 0, n = (double)s->n;
    for (size_t i = 0; i < s->n; i++) {
        s->mean += s->task[i].mean;
        s->nll += s->task[i].nll;
        var += s->task[i].se * s->task[i].se;
        each += 1 / (double)s->task[i].n;
    }
    s->mean /= n;
    s->nll /= n;
    s->se = sqrt(var) / n;
    double p = s->mean / 100, prompts = s->se > 0 ? p * (1 - p) / (s->se * s->se / 1e4) : n * n / each;
    wilson(p, prompts, &s->lo, &s->hi);
    s->lo *= 100;
    s->hi *= 100;
}

static int read_all(const char *dir, const char *as, int64_t length, struct ruler_scores *out, char (*sha[RULER_MAX_TASKS])[65],
                    struct err *e)
{
    char path[1024];
    *out = (struct ruler_scores){0};
    if (as && !known_flavour(as))
        return ERR(e, E_USAGE, "RULER flavour '%s': there are 'compact', 'nvidia' and 'lm-eval'", as);
    if (!file_exists(path_join(path, dir, "ruler.json")))
        TRY(foreign_read(dir, as, length, out, sha, e));
    else if (length)
        return ERR(e, E_USAGE, "'%s': a length is chosen among samples files of lm-evaluation-harness; this folder is of dashlab ruler run",
                   dir);
    else
        TRY(own_read(dir, as, out, sha, e));
    overall(out);
    return 0;
}

int ruler_score(const char *dir, struct ruler_scores *out, struct err *e)
{
    return ruler_score_as(dir, NULL, out, e);
}

int ruler_score_as(const char *dir, const char *flavour, struct ruler_scores *out, struct err *e)
{
    return ruler_score_at(dir, flavour, 0, out, e);
}

int ruler_score_at(const char *dir, const char *flavour, int64_t length, struct ruler_scores *out, struct err *e)
{
    char(*sha[RULER_MAX_TASKS])[65] = {0};
    int rc = read_all(dir, flavour, length, out, sha, e);
    for (size_t i = 0; i < RULER_MAX_TASKS; i++)
        free(sha[i]);
    return rc;
}

void ruler_scores_free(struct ruler_scores *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->task[i].score);
        free(s->task[i].nlls);
    }
    *s = (struct ruler_scores){0};
}

/* ---- comparison ---- */

enum { FLIPS = 20000 };
static const uint64_t flip_seed = 20240917;

/* Weighted differences w[i] of n pairs: share of random sign patterns whose |sum| reaches the one seen. */
static double sign_flip(const double *w, size_t n, uint64_t stream)
{
    double seen = 0;
    int64_t reached = 0, word = 0;
    for (size_t i = 0; i < n; i++)
        seen += w[i];
    seen = fabs(seen) * (1 - 1e-12);
    for (int k = 0; k < FLIPS; k++) {
        double sum = 0;
        for (size_t i = 0; i < n;) {
            uint32_t bits[4];
            philox(flip_seed, stream, (uint64_t)word++, bits);
            for (int b = 0; b < 128 && i < n; b++, i++)
                sum += (bits[b >> 5] >> (b & 31)) & 1 ? w[i] : -w[i];
        }
        reached += fabs(sum) >= seen;
    }
    return (double)(1 + reached) / (1 + FLIPS);
}

static void finish(struct ruler_diff *d, double se)
{
    d->lo = fmax(-100, d->diff - Z95 * se);
    d->hi = fmin(100, d->diff + Z95 * se);
}

static int match_tasks(const struct ruler_scores *a, const struct ruler_scores *b, char (**sa)[65], char (**sb)[65], struct err *e)
{
    if (strcmp(a->flavour, b->flavour) != 0)
        return ERR(e, E_INPUT, "cannot compare RULER flavour '%s' with '%s'", a->flavour, b->flavour);
    for (size_t t = 0; t < MAX(a->n, b->n); t++) {
        if (t >= a->n || t >= b->n || strcmp(a->task[t].name, b->task[t].name) != 0)
            return ERR(e, E_INPUT, "cannot compare: the folders hold different tasks (%zu and %zu; first difference: '%s' and '%s')", a->n,
                       b->n, t < a->n ? a->task[t].name : "none", t < b->n ? b->task[t].name : "none");
        if (a->task[t].n != b->task[t].n)
            return ERR(e, E_INPUT, "cannot compare task '%s': %" PRId64 " and %" PRId64 " samples", a->task[t].name, a->task[t].n,
                       b->task[t].n);
        for (int64_t i = 0; i < a->task[t].n; i++)
            if (strcmp(sa[t][i], sb[t][i]) != 0)
                return ERR(e, E_INPUT, "cannot compare task '%s': line %" PRId64 " has different prompts (sha256 %.12s... and %.12s...)",
                           a->task[t].name, i + 1, sa[t][i], sb[t][i]);
    }
    return 0;
}

static int differences(const struct ruler_scores *a, const struct ruler_scores *b, struct ruler_diff *per_task, struct ruler_diff *overall,
                       struct err *e)
{
    size_t total = 0, at = 0;
    double var = 0;
    for (size_t t = 0; t < a->n; t++)
        total += (size_t)a->task[t].n;
    double *w = malloc((total + 1) * sizeof *w);
    if (!w)
        return err_nomem(e, total * sizeof *w, "paired differences");
    *overall = (struct ruler_diff){.name = "mean", .n = (int64_t)total};
    for (size_t t = 0; t < a->n; t++) {
        struct ruler_diff *d = &per_task[t];
        int64_t n = a->task[t].n;
        double sum = 0, sq = 0;
        *d = (struct ruler_diff){.n = n};
        snprintf(d->name, sizeof d->name, "%s", a->task[t].name);
        for (int64_t i = 0; i < n; i++)
            sum += w[at + (size_t)i] = b->task[t].score[i] - a->task[t].score[i];
        d->diff = sum / (double)n;
        for (int64_t i = 0; i < n; i++)
            sq += (w[at + (size_t)i] - d->diff) * (w[at + (size_t)i] - d->diff);
        double v = n > 1 ? sq / (double)(n - 1) / (double)n : 0;
        finish(d, sqrt(v));
        d->p = sign_flip(w + at, (size_t)n, t + 1);
        for (int64_t i = 0; i < n; i++)
            w[at + (size_t)i] /= (double)n * (double)a->n;
        at += (size_t)n;
        var += v;
        overall->diff += d->diff / (double)a->n;
    }
    finish(overall, sqrt(var) / (double)a->n);
    overall->p = sign_flip(w, total, 0);
    free(w);
    return 0;
}

int ruler_compare(const char *a, const char *b, struct ruler_diff *per_task, size_t *n, struct ruler_diff *overall, struct err *e)
{
    struct ruler_scores sa = {0}, sb = {0};
    char(*ha[RULER_MAX_TASKS])[65] = {0}, (*hb[RULER_MAX_TASKS])[65] = {0};
    int rc = read_all(a, NULL, 0, &sa, ha, e);
    rc = rc ? rc : read_all(b, NULL, 0, &sb, hb, e);
    rc = rc ? rc : match_tasks(&sa, &sb, ha, hb, e);
    rc = rc ? rc : differences(&sa, &sb, per_task, overall, e);
    *n = rc ? 0 : sa.n;
    for (size_t i = 0; i < RULER_MAX_TASKS; i++) {
        free(ha[i]);
        free(hb[i]);
    }
    ruler_scores_free(&sa);
    ruler_scores_free(&sb);
    return rc;
}
