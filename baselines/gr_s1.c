/* GR-S1: the teacher with one layer linear, no training; error of the post-mixer hidden states on the student's own stream [selectors.md
 * B.8, proposed]. */
#include "baselines/trained.h"

static int pick(const struct select_input *in, struct selection *out, struct err *e)
{
    double error[MAX_LAYERS];
    TRY(s1_errors(in, true, error, &out->tokens, e));
    for (int l = 0; l < in->layers; l++)
        out->score[l] = error[l];
    out->has_score = true;
    selection_top(out, in->budget, in->exclude);
    return 0;
}

const struct selector sel_gr_s1 = {.name = "gr-s1", .title = "GR-S1",
                                   .about = "error of the hidden states of the teacher with the layer made linear (high = keep)",
                                   .needs = "teacher, Stage 1, data", .cost = "L+1 forward sweeps",
                                   .source = "GA-S2 row; definition proposed here", .certain = false, .needs_teacher = true,
                                   .needs_linear = true, .needs_data = true, .version = 1, .pick = pick};
