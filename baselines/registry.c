/* The list of selectors, and what is common to running one. */
#include <stdio.h>
#include <string.h>

#include "baselines/selector.h"

const struct selector *const selectors[] = {&sel_uniform, &sel_random, &sel_lm_ppl, &sel_act_mse, &sel_published, &sel_custom};
const size_t n_selectors = ARRAY_LEN(selectors);

const struct selector *selector_find(const char *name)
{
    for (size_t i = 0; i < n_selectors; i++)
        if (!strcmp(selectors[i]->name, name))
            return selectors[i];
    return NULL;
}

int selector_run(const struct selector *s, const struct select_input *in, struct selection *out, struct err *e)
{
    *out = (struct selection){.layers = in->layers, .version = s->version, .asked = in->budget, .seed = in->seed, .filled = true};
    snprintf(out->method, sizeof out->method, "%s", s->name);
    if (in->layers < 1 || in->layers > MAX_LAYERS)
        return ERR(e, E_USAGE, "select: %d layers (1..%d)", in->layers, MAX_LAYERS);
    int excluded = 0;
    for (int l = 0; in->exclude && l < in->layers; l++)
        excluded += in->exclude[l];
    if (s != &sel_custom && (in->budget < 0 || in->budget > in->layers - excluded))
        return ERR(e, E_USAGE, "select: budget %d is outside 0..%d (layers%s)", in->budget, in->layers - excluded, excluded ? " less the excluded ones" : "");
    if (s->needs_teacher && !in->teacher)
        return ERR(e, E_USAGE, "select: method '%s' needs --model", s->name);
    if (s->needs_linear && !in->lin)
        return ERR(e, E_USAGE, "select: method '%s' needs --linear (a Stage-1 run)", s->name);
    if (s->needs_data && (!in->data || in->row_hi <= in->row_lo || in->row_hi > in->data->rows))
        return ERR(e, E_USAGE, "select: method '%s' needs --data with rows to score", s->name);
    if (excluded)
        snprintf(out->variant, sizeof out->variant, "%d layer%s excluded", excluded, excluded == 1 ? "" : "s");
    double f0 = in->be ? in->be->flops : 0;
    TRY(s->pick(in, out, e));
    out->budget = layers_budget(out->kind, out->layers, 0);
    out->flops_forward = in->be ? in->be->flops - f0 : 0;
    return 0;
}
