/* SMART (Zebra-Llama): sensitivity s(l) = fall of the KL when layer l of the all-linear student is restored; placement with near-even
 * gaps by an exact dynamic programme [selectors.md B.5]. */
#include "baselines/smart.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- placement ---- */

static int argmax(const double *s, int lo, int hi, const bool *exclude)
{
    int best = -1;
    for (int l = lo; l < hi; l++)
        if (!(exclude && exclude[l]) && (best < 0 || s[l] > s[best]))
            best = l;
    return best;
}

/*
 * rest[k][l]: largest sum over the kept layers from l on when l is kept and k more follow, the last of them at `last`; -INFINITY:
 * impossible. Steps are floor(x)+1 or ceil(x)+1. Read forwards afterwards, the smaller step first, so that the lexicographically
 * smallest of equal placements is found.
 */
static int between(const double *s, int n, int first, int last, const bool *exclude, int *out, struct err *e)
{
    int inner = last - first - (n - 1), lo = inner / (n - 1) + 1, hi = lo + (inner % (n - 1) != 0), width = last + 1;
    double *rest = malloc((size_t)n * (size_t)width * sizeof *rest);
    if (!rest)
        return err_nomem(e, (size_t)n * (size_t)width * sizeof *rest, "placements");
    for (int k = 0; k < n; k++)
        for (int l = 0; l < width; l++) {
            double *at = &rest[k * width + l], best = -INFINITY;
            for (int step = lo; k > 0 && step <= hi; step++)
                if (l + step <= last)
                    best = fmax(best, rest[(k - 1) * width + l + step]);
            if (k == 0)
                best = l == last ? 0 : -INFINITY;
            *at = exclude && exclude[l] ? -INFINITY : s[l] + best;
        }
    int rc = isinf(rest[(n - 1) * width + first])
        ? ERR(e, E_USAGE, "smart: no placement of %d layers with even gaps avoids the excluded ones", n) : 0;
    for (int k = n - 1, l = first; rc == 0 && k >= 0; k--) {
        out[n - 1 - k] = l;
        if (k > 0)
            l += l + lo <= last && (hi == lo || l + hi > last || rest[(k - 1) * width + l + lo] >= rest[(k - 1) * width + l + hi]) ? lo
                : hi;
    }
    free(rest);
    return rc;
}

int smart_place(const double *s, int L, int n, const bool *exclude, int *out, struct err *e)
{
    if (n < 1 || n > L)
        return ERR(e, E_USAGE, "smart: %d of %d layers", n, L);
    if (n == 1) {
        out[0] = argmax(s, 0, L, exclude);
        return out[0] >= 0 ? 0 : ERR(e, E_USAGE, "smart: every layer is excluded");
    }
    int block = L / n, first = argmax(s, 0, block, exclude), last = argmax(s, L - block, L, exclude);
    if (first < 0 || last < 0)
        return ERR(e, E_USAGE, "smart: every one of the %s %d layers is excluded", first < 0 ? "first" : "last", block);
    return between(s, n, first, last, exclude, out, e);
}

static int place(const struct select_input *in, struct selection *out, struct err *e)
{
    int kept[MAX_LAYERS];
    TRY(smart_place(out->score, in->layers, in->budget, in->exclude, kept, e));
    for (int l = 0; l < in->layers; l++)
        out->kind[l] = MIX_GDN;
    for (int i = 0; i < in->budget; i++)
        out->kind[kept[i]] = MIX_FULL;
    return 0;
}

/* ---- sensitivity ---- */

struct smart_ctx {
    struct kl_sums base, layer[MAX_LAYERS];
};

static int measure(void *ctx, struct ablation *a, int layer, struct view hidden, double *value, struct err *e)
{
    struct smart_ctx *c = ctx;
    UNUSED(value);
    return stream_kl(&a->st, a->m, hidden, POS_ALL, false, false, 1, layer < 0 ? &c->base : &c->layer[layer], e);
}

static double mean_kl(const struct kl_sums *k, enum positions pos)
{
    return pos == POS_ANSWERS ? k->answers / fmax(k->n_answers, 1) : k->all / fmax(k->n_all, 1);
}

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    struct ablation a;
    double base;
    struct smart_ctx *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, sizeof *c, "sums");
    int rc = ablation_open(&a, in, SWEEP_RESTORE, e);
    if (rc == 0) {
        rc = ablation_sweep(&a, measure, c, out->score, &base, e);
        out->tokens = (int64_t)(a.tokens + a.st.teacher_tokens);
        ablation_close(&a);
    }
    for (int l = 0; rc == 0 && l < in->layers; l++)
        out->score[l] = mean_kl(&c->base, in->positions) - mean_kl(&c->layer[l], in->positions);
    free(c);
    out->has_score = true;
    return rc != 0 ? -1 : place(in, out, e);
}

const struct selector sel_smart = {.name = "smart", .title = "SMART",
                                   .about = "fall of the KL when the layer is restored in the all-linear student; even gaps",
                                   .needs = "teacher, Stage 1, data", .cost = "L+2 forward sweeps",
                                   .source = "Zebra-Llama; placement checked against its published sets, data proposed", .certain = false,
                                   .needs_teacher = true, .needs_linear = true, .needs_data = true, .version = 1, .pick = pick,
                                   .place = place};
