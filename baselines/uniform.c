/* Uniform: index i*s with s = floor((L-1)/(K-1)) [selectors.md B.1, the rule of the Qwen rows]. Excluded layers are left out before the
 * rule is applied to what remains. */
#include "baselines/selector.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    int allowed[MAX_LAYERS], n = 0;
    UNUSED(e);
    for (int l = 0; l < in->layers; l++) {
        out->kind[l] = MIX_GDN;
        if (!in->exclude || !in->exclude[l])
            allowed[n++] = l;
    }
    int step = in->budget > 1 ? (n - 1) / (in->budget - 1) : 1;
    for (int i = 0; i < in->budget; i++)
        out->kind[allowed[i * step]] = MIX_FULL;
    return 0;
}

const struct selector sel_uniform = {.name = "uniform", .title = "Uniform", .about = "evenly spaced layers", .needs = "nothing",
                                     .cost = "none", .source = "GA-S2 configs, Qwen rows", .certain = true, .version = 1, .pick = pick};
