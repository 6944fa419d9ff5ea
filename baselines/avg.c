/*
 * Avg-S1, Avg-S2: the mean of a GA run's and a GR run's ranks, rank 0 = kept first; the K smallest are kept [selectors.md B.9]. Equal
 * means: the GA rank decides, then the lower index (proposed); ties_at_cut counts layers left out with the mean of the last one kept.
 */
#include <stdio.h>
#include <string.h>

#include "baselines/avg.h"

void avg_ranks(const struct selection *ga, const struct selection *gr, double mean[MAX_LAYERS], int order[MAX_LAYERS])
{
    int a[MAX_LAYERS], r[MAX_LAYERS], rank_a[MAX_LAYERS], rank_r[MAX_LAYERS];
    selection_order(ga, a);
    selection_order(gr, r);
    for (int i = 0; i < ga->layers; i++) {
        rank_a[a[i]] = i;
        rank_r[r[i]] = i;
    }
    for (int l = 0; l < ga->layers; l++)
        mean[l] = 0.5 * (rank_a[l] + rank_r[l]);
    for (int n = 0; n < ga->layers; n++) { /* layers come in order of GA rank, so equal means keep it */
        int l = a[n], i = n;
        for (; i > 0 && mean[l] < mean[order[i - 1]]; i--)
            order[i] = order[i - 1];
        order[i] = l;
    }
}

static int check(const struct selection *s, const char *want, const char *flag, int layers, const char *name, struct err *e)
{
    if (!s)
        return ERR(e, E_USAGE, "select: method '%s' needs --%s (a finished run of method '%s')", name, flag, want);
    if (strcmp(s->method, want))
        return ERR(e, E_USAGE, "select: --%s is a run of method '%s'; method '%s' averages '%s' there", flag, s->method, name, want);
    if (!s->has_score)
        return ERR(e, E_USAGE, "select: --%s (method '%s') has no scores", flag, s->method);
    if (s->layers != layers)
        return ERR(e, E_USAGE, "select: --%s has scores for %d layers, the model has %d", flag, s->layers, layers);
    return 0;
}

static int average(const struct select_input *in, struct selection *out, const char *name, const char *ga, const char *gr, struct err *e)
{
    double mean[MAX_LAYERS], cut = 0;
    int order[MAX_LAYERS], kept = 0;
    TRY(check(in->first, ga, "first", in->layers, name, e));
    TRY(check(in->second, gr, "second", in->layers, name, e));
    avg_ranks(in->first, in->second, mean, order);
    for (int l = 0; l < in->layers; l++) {
        out->score[l] = -mean[l];
        out->kind[l] = MIX_GDN;
    }
    for (int i = 0; i < in->layers; i++) {
        int l = order[i];
        if (in->exclude && in->exclude[l])
            continue;
        if (kept < in->budget) {
            out->kind[l] = MIX_FULL;
            cut = mean[l];
            kept++;
        } else
            out->ties_at_cut += mean[l] == cut;
    }
    out->has_score = true;
    out->tokens = in->first->tokens + in->second->tokens;
    out->flops_forward = in->first->flops_forward + in->second->flops_forward;
    out->flops_backward = in->first->flops_backward + in->second->flops_backward;
    return 0;
}

static int pick_s1(const struct select_input *in, struct selection *out, struct err *e)
{
    return average(in, out, "avg-s1", "ga-s1", "gr-s1", e);
}

static int pick_s2(const struct select_input *in, struct selection *out, struct err *e)
{
    return average(in, out, "avg-s2", "ga-s2", "gr-s2", e);
}

const struct selector sel_avg_s1 = {.name = "avg-s1", .title = "Avg-S1", .about = "mean of GA-S1's and GR-S1's ranks",
                                    .needs = "a GA-S1 and a GR-S1 run", .cost = "theirs", .source = "DASH App. C.1", .certain = true,
                                    .version = 1, .pick = pick_s1};
const struct selector sel_avg_s2 = {.name = "avg-s2", .title = "Avg-S2", .about = "mean of GA-S2's and GR-S2's ranks",
                                    .needs = "a GA-S2 and a GR-S2 run", .cost = "theirs", .source = "DASH App. C.1", .certain = true,
                                    .version = 1, .pick = pick_s2};
