/* Two result folders, document by document. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "core/stats.h"
#include "lmeval/lmeval.h"
#include "lmeval/rows.h"

struct scored {
    int64_t *id;
    char (*prompt)[65];
    double (*v)[2]; /* acc, acc_norm; NAN = not there */
    int64_t n, cap;
};

static void scored_free(struct scored *s)
{
    free(s->id);
    free(s->prompt);
    free(s->v);
    *s = (struct scored){0};
}

static int one_sample(void *ctx, int64_t line, const struct jdoc *d, struct err *e)
{
    struct scored *s = ctx;
    const char *prompt;
    UNUSED(line);
    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 256;
        void *a = realloc(s->id, (size_t)cap * sizeof *s->id);
        s->id = a ? a : s->id;
        void *b = realloc(s->prompt, (size_t)cap * sizeof *s->prompt);
        s->prompt = b ? b : s->prompt;
        void *c = realloc(s->v, (size_t)cap * sizeof *s->v);
        s->v = c ? c : s->v;
        if (!a || !b || !c)
            return err_nomem(e, (size_t)cap * 90, "samples");
        s->cap = cap;
    }
    s->v[s->n][0] = s->v[s->n][1] = NAN;
    TRY(jget_i64(d, d->root, "", "doc_id", 0, INT64_MAX, &s->id[s->n], e));
    TRY(jget_str(d, d->root, "", "prompt_hash", &prompt, e));
    TRY(jget_f64(d, d->root, "", "acc", &s->v[s->n][0], e));
    TRY(jget_f64_opt(d, d->root, "", "acc_norm", &s->v[s->n][1], e));
    if (strlen(prompt) != 64)
        return ERR(e, E_INPUT, "%s: prompt_hash '%.80s' is no SHA-256", d->file, prompt);
    memcpy(s->prompt[s->n++], prompt, 65);
    return 0;
}

/* samples_TASK.jsonl, or the newest of the harness' dated ones. */
static bool samples_path(const char *dir, const char *task, char path[1200])
{
    struct names names;
    struct err ignored = ERR_INIT;
    char start[96];
    bool found = false;
    snprintf(path, 1200, "%s/samples_%s.jsonl", dir, task);
    if (file_exists(path))
        return true;
    if (dir_list(dir, &names, &ignored) != 0)
        return false;
    snprintf(start, sizeof start, "samples_%s_20", task);
    for (size_t i = 0; i < names.n; i++) /* sorted: the last is the newest */
        if (!strncmp(names.v[i], start, strlen(start))) {
            snprintf(path, 1200, "%s/%s", dir, names.v[i]);
            found = true;
        }
    names_free(&names);
    return found;
}

/* P(|X - n/2| >= |k - n/2|) for X ~ Binomial(n, 1/2): exact McNemar. */
static double mcnemar(int64_t b, int64_t c)
{
    int64_t n = b + c, k = MIN(b, c);
    double sum = 0;
    if (!n)
        return 1;
    for (int64_t i = 0; i <= k; i++)
        sum += exp(lgamma((double)n + 1) - lgamma((double)i + 1) - lgamma((double)(n - i) + 1) - (double)n * log(2));
    return fmin(1, 2 * sum);
}

struct tally {
    double a, b, sum, sq;
    int64_t n, only_a, only_b;
};

static void count(struct tally *t, double a, double b)
{
    t->a += a;
    t->b += b;
    t->sum += b - a;
    t->sq += (b - a) * (b - a);
    t->n++;
    t->only_a += a > b;
    t->only_b += b > a;
}

static struct lme_diff diff_of(const struct tally *t, const char *name, const char *metric)
{
    struct lme_diff d = {.metric = metric, .n = t->n, .only_a = t->only_a, .only_b = t->only_b};
    double n = (double)t->n, var = t->n > 1 ? (t->sq - t->sum * t->sum / n) / (n - 1) : 0;
    snprintf(d.name, sizeof d.name, "%s", name);
    d.a = t->a / n;
    d.b = t->b / n;
    d.diff = t->sum / n;
    d.lo = fmax(-1, d.diff - Z95 * sqrt(fmax(var, 0) / n));
    d.hi = fmin(1, d.diff + Z95 * sqrt(fmax(var, 0) / n));
    d.p = mcnemar(t->only_a, t->only_b);
    return d;
}

static int same_documents(const char *task, const struct scored *a, const struct scored *b, struct err *e)
{
    if (a->n != b->n)
        return ERR(e, E_INPUT, "cannot compare task '%s': %" PRId64 " and %" PRId64 " documents", task, a->n, b->n);
    if (!a->n)
        return ERR(e, E_INPUT, "cannot compare task '%s': no documents", task);
    for (int64_t i = 0; i < a->n; i++) {
        if (a->id[i] != b->id[i])
            return ERR(e, E_INPUT, "cannot compare task '%s': sample %" PRId64 " is of document %" PRId64 " and %" PRId64, task, i,
                       a->id[i], b->id[i]);
        if (strcmp(a->prompt[i], b->prompt[i]) != 0)
            return ERR(e, E_INPUT, "cannot compare task '%s': document %" PRId64 " has different prompts (sha256 %.12s... and %.12s...)",
                       task, a->id[i], a->prompt[i], b->prompt[i]);
    }
    return 0;
}

static int compare_task(const char *task, const char *pa, const char *pb, struct tally *all, struct lme_diff *out, size_t cap, size_t *n,
                        struct err *e)
{
    static const char *const metric[] = {"acc", "acc_norm"};
    struct scored a = {0}, b = {0};
    int rc = json_each(pa, one_sample, &a, e) || json_each(pb, one_sample, &b, e) || same_documents(task, &a, &b, e) ? -1 : 0;
    for (int m = 0; rc == 0 && m < 2; m++) {
        struct tally t = {0};
        for (int64_t i = 0; i < a.n; i++) {
            if (isnan(a.v[i][m]) || isnan(b.v[i][m]))
                continue;
            count(&t, a.v[i][m], b.v[i][m]);
            if (m == 0)
                count(all, a.v[i][m], b.v[i][m]);
        }
        if (t.n && *n < cap)
            out[(*n)++] = diff_of(&t, task, metric[m]);
    }
    scored_free(&a);
    scored_free(&b);
    return rc;
}

int lme_compare(const char *a, const char *b, struct lme_diff *out, size_t cap, size_t *n, struct err *e)
{
    struct tally all = {0};
    *n = 0;
    for (int k = 0; k < 2; k++)
        if (!dir_exists(k ? b : a))
            return ERR(e, E_INPUT, "folder '%s' does not exist; 'dashlab lmeval run --model M --tasks T --out %s' makes it", k ? b : a,
                       k ? b : a);
    for (int i = 0; i < LME_N_TASKS; i++) {
        const char *task = lme_task_at(i)->name;
        char pa[1200], pb[1200];
        bool in_a = samples_path(a, task, pa), in_b = samples_path(b, task, pb);
        if (in_a != in_b)
            return ERR(e, E_INPUT, "cannot compare: only '%s' has samples of task '%s'", in_a ? a : b, task);
        if (in_a)
            TRY(compare_task(task, pa, pb, &all, out, cap, n, e));
    }
    if (!*n)
        return ERR(e, E_INPUT, "'%s' and '%s' hold no samples_TASK.jsonl to compare (lmeval run writes them, unless --no-log-samples)", a,
                   b);
    if (*n < cap)
        out[(*n)++] = diff_of(&all, "all documents", "acc");
    return 0;
}
