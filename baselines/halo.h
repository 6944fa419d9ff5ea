/* HALO's score, for its tests. */
#ifndef BASELINES_HALO_H
#define BASELINES_HALO_H

#include "baselines/probe.h"

#define HALO_EPS 1e-6
#define HALO_CLIP 50.0

/* s(i) = (max_j R_j - R_i) / (max_j C_j - C_i + eps), at most 50: R, C of the teacher with layer i converted, shares 0..1. */
void halo_scores(const double *recall, const double *common, int layers, double *score);
/* HALO with these recall prompts instead of its own. */
int halo_select(const struct select_input *in, const struct probe_set *set, struct selection *out, struct err *e);

#endif
