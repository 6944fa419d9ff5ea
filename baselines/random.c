/* Random: K layers of a seeded permutation. The control that reviewers asked for. */
#include <stdlib.h>

#include "baselines/selector.h"
#include "core/rng.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    int64_t perm[MAX_LAYERS];
    UNUSED(e);
    ctr_permutation(in->seed, 0x72616e646f6dull, perm, (size_t)in->layers);
    for (int l = 0; l < in->layers; l++) {
        out->kind[l] = MIX_GDN;
        out->score[perm[l]] = in->layers - l;
    }
    out->has_score = true;
    selection_top(out, in->budget, in->exclude);
    return 0;
}

const struct selector sel_random = {.name = "random", .title = "Random", .about = "a seeded random subset", .needs = "nothing",
                                    .cost = "none", .source = "control", .certain = true, .version = 1, .pick = pick};
