/*
 * The landscape of a budget: KL of every binary set of K Full layers, the rest linear mixers of Stage 1, nothing trained, over held-out
 * rows. What a selector could have chosen, and how many sets are better than what it chose. C(L, K) sets; they are visited in the order
 * of their masks, and a set begins at the first layer in which it differs from the one before.
 */
#ifndef DASH_LANDSCAPE_H
#define DASH_LANDSCAPE_H

#include "dash/selection.h"
#include "dash/stream.h"

struct landscape_opts {
    int full;              /* K */
    int64_t row_lo, row_hi; /* the rows measured */
    int64_t micro;         /* rows at once; changes no result */
    double tau;
};
enum { LANDSCAPE_MAX_SETS = 100000 };
/* Writes DIR/landscape.tsv: "mask kl kl_answers", mean nats a token; state: folder for the sums so far (a killed run goes on). E_USAGE:
 * more than LANDSCAPE_MAX_SETS sets. */
int landscape_run(struct model *teacher, const struct linset *lin, const struct shard *data, const struct hcache *cache,
                  const struct landscape_opts *o, const char *dir, const char *state, int64_t *sets, struct err *e);

#endif
