/* SMART's placement, for its tests. */
#ifndef BASELINES_SMART_H
#define BASELINES_SMART_H

#include "baselines/selector.h"

/*
 * Zebra-Llama's placement of n kept layers over L sensitivities [selectors.md B.5]: first = argmax s over 0..floor(L/n)-1, last = argmax
 * s over L-floor(L/n)..L-1; among all placements between them in which every gap (layers strictly between neighbours) is floor(x) or
 * ceil(x), x = (last - first - (n-1)) / (n-1), the one with the largest sum. n = 1: argmax; n = 2: first and last (proposed). Ties:
 * lower indices. exclude (or NULL): layers that may not be kept; E_USAGE when nothing satisfies the rule then. out[n] ascending.
 */
int smart_place(const double *s, int L, int n, const bool *exclude, int *out, struct err *e);

#endif
