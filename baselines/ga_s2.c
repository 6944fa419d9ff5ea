/* GA-S2. For each layer on its own the Stage-1 all-linear student gets that layer's attention back and is distilled for a while; the
 * layers with the lowest KL stay Full. One-shot ranking as published [selectors.md B.6]; held-out KL ranks by default (published:
 * training loss). */
#include "baselines/trained.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return s2_pick(in, false, out, e);
}

const struct selector sel_ga_s2 = {.name = "ga-s2", .title = "GA-S2",
                                   .about = "KL after a short distillation of the all-linear student with the layer restored (low = keep)",
                                   .needs = "teacher, Stage 1, data", .cost = "L distillations", .source = "fla-org/hybrid-distillation",
                                   .certain = true, .needs_teacher = true, .needs_linear = true, .needs_data = true, .trains = true,
                                   .version = 1, .pick = pick};
