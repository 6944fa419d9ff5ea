/* Rank averaging, for its tests. */
#ifndef BASELINES_AVG_H
#define BASELINES_AVG_H

#include "baselines/selector.h"

/* mean[l]: mean of l's two ranks (0 = kept first). order: layers by rising mean, then GA rank, then index. Both have scores for the same
 * number of layers. */
void avg_ranks(const struct selection *ga, const struct selection *gr, double mean[MAX_LAYERS], int order[MAX_LAYERS]);

#endif
