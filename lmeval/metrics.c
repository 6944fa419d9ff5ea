/* Scores of documents, tasks and groups, with the harness' order of floating-point operations [lmeval.md 1.4, 1.6]. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/stats.h"
#include "lmeval/lmeval.h"

/* In the order of the harness' tables: by name. */
const char *const lme_metric_names[LME_N_METRICS + 1] = {"acc",         "acc_bytes", "acc_mutual_info", "acc_norm", "brier_score",
                                                         "exact_match", NULL};

int lme_metrics_of(const char *list, unsigned *bits, struct err *e)
{
    *bits = 0;
    for (const char *s = list ? list : ""; *s; s += strcspn(s, ","), s += *s == ',') {
        char name[32];
        size_t n = strcspn(s, ",");
        int found = -1;
        snprintf(name, sizeof name, "%.*s", (int)MIN(n, sizeof name - 1), s);
        for (int i = 0; i < LME_N_METRICS; i++)
            if (!strcmp(name, lme_metric_names[i]))
                found = i;
        const char *near = found < 0 ? nearest_word(name, lme_metric_names, LME_N_METRICS) : NULL;
        if (found < 0)
            return ERR(e, E_USAGE,
                       "unknown metric '%s'%s%s%s; there are acc, acc_norm, acc_bytes, acc_mutual_info, brier_score and exact_match", name,
                       near ? ", did you mean '" : "", near ? near : "", near ? "'?" : "");
        *bits |= 1u << found;
    }
    return 0;
}

unsigned lme_task_metrics(const struct lme_task *t)
{
    return 1u << LME_ACC | (t->kind == LME_ARC || t->kind == LME_PIQA ? 1u << LME_ACC_NORM : 0);
}

int lme_argmax(const double *v, int n)
{
    int best = 0;
    for (int i = 0; i < n; i++) {
        if (isnan(v[i]))
            return i;
        if (v[i] > v[best])
            best = i;
    }
    return best;
}

/* sum over choices of (softmax(ll) - [gold])^2 */
static double brier(const double *ll, int n, int gold)
{
    double max = ll[0], sum = 0, p[LME_MAX_CHOICES], out = 0;
    for (int i = 1; i < n; i++)
        max = ll[i] > max ? ll[i] : max;
    for (int i = 0; i < n; i++)
        sum += p[i] = exp(ll[i] - max);
    for (int i = 0; i < n; i++)
        out += (p[i] / sum - (i == gold)) * (p[i] / sum - (i == gold));
    return out;
}

int lme_doc_scores(const struct lme_task *t, const struct lme_doc *d, const double *ll, const bool *greedy, unsigned metrics,
                   double out[LME_N_METRICS], struct err *e)
{
    int n = d->n_choice;
    double chars[LME_MAX_CHOICES], bytes[LME_MAX_CHOICES], info[LME_MAX_CHOICES];
    struct str s = STR_INIT;
    for (int i = 0; i < n; i++) {
        str_clear(&s);
        lme_choice_text(t, d, i, &s);
        chars[i] = ll[i] / (double)utf8_count(str_c(&s), s.len);
        bytes[i] = ll[i] / (double)s.len;
        info[i] = metrics & 1u << LME_MUTUAL_INFO ? ll[i] - ll[n + i] : 0;
    }
    int rc = str_ok(&s, "a choice", e);
    str_free(&s);
    out[LME_ACC] = lme_argmax(ll, n) == d->gold;
    out[LME_ACC_NORM] = lme_argmax(chars, n) == d->gold;
    out[LME_ACC_BYTES] = lme_argmax(bytes, n) == d->gold;
    out[LME_MUTUAL_INFO] = lme_argmax(info, n) == d->gold;
    out[LME_BRIER] = brier(ll, n, d->gold);
    out[LME_EXACT] = greedy[d->gold];
    return rc;
}

void lme_mean(const double *x, int64_t n, struct lme_value *out)
{
    double sum = 0, sq = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    out->mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++)
        sq += (x[i] - out->mean) * (x[i] - out->mean);
    out->se = n > 1 ? sqrt(sq / (double)(n - 1)) / sqrt((double)n) : -1;
    wilson(out->mean, (double)n, &out->lo, &out->hi);
}

bool lme_group_result(int group, const struct lme_result *leaf, int n, struct lme_result *out)
{
    bool all = group == LME_N_GROUPS - 1, na = false;
    double sum = 0, pooled = 0;
    int64_t docs = 0, original = 0;
    int leaves = 0, want = 0, shots = -2;
    *out = (struct lme_result){.group = group, .metrics = 1u << LME_ACC};
    for (int i = 0; i < LME_N_SUBJECTS; i++) {
        const struct lme_task *t = lme_task_at(i);
        if (!all && t->group != group)
            continue;
        want++;
        for (int k = 0; k < n; k++) {
            const struct lme_result *r = &leaf[k];
            double se = r->v[LME_ACC].se;
            if (r->task != t)
                continue;
            leaves++;
            docs += r->n;
            original += r->original;
            na = na || se < 0;
            sum += r->v[LME_ACC].mean * (double)r->n;
            pooled += (double)(r->n - 1) * (se * se) * (double)r->n;
            shots = shots == -2 || shots == r->shots ? r->shots : -1;
            out->truncated += r->truncated;
            out->cut += r->cut;
            out->ties += r->ties;
            out->requests += r->requests;
            out->cost.tokens += r->cost.tokens;
            out->cost.no_sharing += r->cost.no_sharing;
            out->cost.one_token_cache += r->cost.one_token_cache;
        }
    }
    if (leaves != want)
        return false;
    out->n = docs;
    out->original = original;
    out->shots = shots; /* -1: the subjects differ */
    out->v[LME_ACC].mean = sum / (double)docs;
    out->v[LME_ACC].se = na ? -1 : sqrt(pooled / (double)(docs - leaves) / (double)docs);
    wilson(out->v[LME_ACC].mean, (double)docs, &out->v[LME_ACC].lo, &out->v[LME_ACC].hi);
    return true;
}
