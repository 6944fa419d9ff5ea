/* The list of selectors, and what is common to running one. */
#include <stdio.h>
#include <string.h>

#include "baselines/selector.h"

const struct selector *const selectors[] = {
    &sel_uniform, &sel_random,
    &sel_kv, &sel_ar, &sel_ar_mh, &sel_vt, &sel_cwe,
    &sel_lm_ppl, &sel_act_mse,
    &sel_smart, &sel_halo,
    &sel_ga_s1, &sel_gr_s1, &sel_avg_s1,
    &sel_ga_s2, &sel_gr_s2, &sel_avg_s2,
    &sel_flashmorph, &sel_postnas,
    &sel_published, &sel_custom,
};
const size_t n_selectors = ARRAY_LEN(selectors);

const struct selector *selector_find(const char *name)
{
    for (size_t i = 0; i < n_selectors; i++)
        if (!strcmp(selectors[i]->name, name))
            return selectors[i];
    return NULL;
}

int selector_check_budget(const struct selector *s, const struct select_input *in, struct err *e)
{
    int excluded = 0;
    if (in->layers < 1 || in->layers > MAX_LAYERS)
        return ERR(e, E_USAGE, "select: %d layers (1..%d)", in->layers, MAX_LAYERS);
    for (int l = 0; in->exclude && l < in->layers; l++)
        excluded += in->exclude[l];
    int most = MIN(in->layers - 1, in->layers - excluded), least = in->counts_taken && in->windows ? 0 : 1;
    if (s != &sel_custom && (in->budget < least || in->budget > most))
        return ERR(e, E_USAGE,
                   "select: budget %d is outside 1..%d (%d layers%s; for none or all, use method 'custom' with 'none' or 'all')",
                   in->budget, most, in->layers, excluded ? ", some of them excluded" : "");
    if (in->windows && (s == &sel_custom || s == &sel_published))
        return ERR(e, E_USAGE, "select: method '%s' takes no --windows; write a custom set, for example \"full:0,5 window:2\"", s->name);
    if (in->windows < 0 || in->windows > in->layers - excluded - in->budget)
        return ERR(e, E_USAGE, "select: %d Window layers beside %d Full ones do not fit %d layers%s", in->windows, in->budget, in->layers,
                   excluded ? " less the excluded ones" : "");
    return 0;
}

int selector_check(const struct selector *s, const struct select_input *in, struct err *e)
{
    TRY(selector_check_budget(s, in, e));
    if (in->scores) {
        if (strcmp(in->scores->method, s->name))
            return ERR(e, E_USAGE, "select: the scores are of method '%s', not '%s'", in->scores->method, s->name);
        if (!in->scores->has_score && !in->scores->uninformative)
            return ERR(e, E_USAGE, "select: the run given as --scores (method '%s') has no scores", s->name);
        if (in->scores->layers != in->layers)
            return ERR(e, E_USAGE, "select: the scores are for %d layers, the model has %d", in->scores->layers, in->layers);
        return 0;
    }
    if (s->needs_teacher && !in->teacher)
        return ERR(e, E_USAGE, "select: method '%s' needs --model", s->name);
    if (s->needs_tokenizer && !in->teacher->tok)
        return ERR(e, E_INPUT, "select: method '%s' needs a tokenizer, '%s' has none", s->name, in->teacher->path);
    if (s->needs_linear && !in->lin)
        return ERR(e, E_USAGE, "select: method '%s' needs --linear (a Stage-1 run)", s->name);
    if (s->needs_data && !in->data)
        return ERR(e, E_USAGE, "select: method '%s' needs --data with rows to score", s->name);
    if (s->needs_data && !s->trains && (in->row_hi <= in->row_lo || in->row_hi > in->data->rows))
        return ERR(e, E_USAGE, "select: method '%s' scores %" PRId64 " rows from row %" PRId64 " on (--rows, --row-lo), the shard has %"
                   PRId64 " rows", s->name, in->row_hi - in->row_lo, in->row_lo, in->data->rows);
    return 0;
}

/* Another budget from scores that are there; what they cost goes with them. */
static int place_again(const struct selector *s, const struct select_input *in, struct selection *out, struct err *e)
{
    memcpy(out->score, in->scores->score, sizeof out->score);
    out->reused = true;
    out->has_score = in->scores->has_score;
    out->tokens = in->scores->tokens;
    out->flops_forward = in->scores->flops_forward;
    out->flops_backward = in->scores->flops_backward;
    out->has_base = in->scores->has_base;
    out->base = in->scores->base;
    out->uninformative = in->scores->uninformative;
    out->seed = in->scores->seed;
    snprintf(out->variant, sizeof out->variant, "%s", in->scores->variant);
    for (int l = 0; l < in->layers; l++)
        out->kind[l] = MIX_GDN;
    if (out->uninformative)
        return 0;
    if (s->place)
        return s->place(in, out, e);
    selection_top(out, in->budget, in->exclude);
    return 0;
}

/* The rule of uniform.c over the layers that are neither kept nor excluded. */
static void even_windows(const struct select_input *in, struct selection *out)
{
    int rest[MAX_LAYERS], n = 0;
    for (int l = 0; l < in->layers; l++)
        if (out->kind[l] == MIX_GDN && !(in->exclude && in->exclude[l]))
            rest[n++] = l;
    int step = in->windows > 1 ? (n - 1) / (in->windows - 1) : 1;
    for (int i = 0; i < in->windows; i++)
        out->kind[rest[i * step]] = MIX_WINDOW;
}

static void ranked_windows(const struct select_input *in, struct selection *out)
{
    int order[MAX_LAYERS], left = in->windows;
    selection_order(out, order);
    for (int i = 0; i < in->layers && left > 0; i++)
        if (out->kind[order[i]] == MIX_GDN && !(in->exclude && in->exclude[order[i]])) {
            out->kind[order[i]] = MIX_WINDOW;
            left--;
        }
}

int selector_run(const struct selector *s, const struct select_input *in, struct selection *out, struct err *e)
{
    *out = (struct selection){.layers = in->layers, .version = s->version, .asked = in->budget, .seed = in->seed, .filled = true};
    snprintf(out->method, sizeof out->method, "%s", s->name);
    TRY(selector_check(s, in, e));
    double f0 = in->be ? in->be->flops : 0;
    TRY(in->scores ? place_again(s, in, out, e) : s->pick(in, out, e));
    int excluded = 0;
    for (int l = 0; in->exclude && l < in->layers; l++)
        excluded += in->exclude[l];
    size_t n = strlen(out->variant);
    if (excluded)
        snprintf(out->variant + n, sizeof out->variant - n, "%s%d layer%s excluded", n ? ", " : "", excluded, excluded == 1 ? "" : "s");
    for (int l = 0; out->has_score && l < out->layers; l++)
        if (!finite_f64(out->score[l]))
            return ERR(e, E_NUMERIC, "select: method '%s': the score of layer %d is not finite", s->name, l);
    if (in->windows > 0 && !out->uninformative) {
        (out->has_score ? ranked_windows : even_windows)(in, out);
        n = strlen(out->variant);
        snprintf(out->variant + n, sizeof out->variant - n, "%s%d Window", n ? ", " : "+", in->windows);
    }
    out->budget = layers_budget(out->kind, out->layers, in->window_cost);
    if (out->flops_forward == 0 && out->flops_backward == 0)
        out->flops_forward = in->be ? in->be->flops - f0 : 0;
    if (out->uninformative)
        out->filled = false; /* nothing is trained for it */
    return 0;
}
