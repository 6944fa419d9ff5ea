/* GR-S2. For each layer on its own the teacher gets that layer made linear and is distilled for a while; the layers with the highest KL
 * stay Full [selectors.md B.7, proposed: one-shot]. */
#include "baselines/trained.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    return s2_pick(in, true, out, e);
}

const struct selector sel_gr_s2 = {.name = "gr-s2", .title = "GR-S2",
                                   .about = "KL after a short distillation of the teacher with the layer made linear (high = keep)",
                                   .needs = "teacher, Stage 1, data", .cost = "L distillations",
                                   .source = "GA-S2 row; definition proposed here", .certain = false, .needs_teacher = true,
                                   .needs_linear = true, .needs_data = true, .trains = true, .version = 1, .pick = pick};
