/*
 * Paired comparisons of rows that answered the same prompts. A row has S seeds (trainings of one layer set), each with a score for every
 * prompt; tasks are fixed and weigh the same; prompts are resampled inside their task with one set of indices for all rows [selectors.md
 * F].
 *
 * d = mean(row) - mean(reference) over the seeds that both have; SE^2 = (variance of d over these seeds) / S + (variance of d over the
 * draws). With one seed the first term is unknown and left out: such an interval is about prompts alone and says nothing about a
 * selector.
 */
#ifndef REPORTS_PAIRED_H
#define REPORTS_PAIRED_H

#include "core/err.h"

enum { PAIRED_SEEDS = 8, PAIRED_DRAWS = 10000 };

struct paired_row {
    size_t n_seeds;
    int64_t seed[PAIRED_SEEDS];
    const double *score[PAIRED_SEEDS]; /* [samples], tasks one after another */
};
struct paired_diff {
    double d, se, se_seeds, half;      /* half: of the 95 % interval d +- half */
    double p, p_holm;                  /* two-sided normal; corrected over the family */
    size_t seeds;                      /* that both have; 0: not comparable */
};
struct paired {
    size_t n_tasks, n_samples;
    const size_t *task_n;              /* samples of each task */
    uint8_t *times;                    /* [PAIRED_DRAWS, samples]: how often a draw takes a sample */
};
/* Draws the indices. Borrows task_n. */
int paired_open(struct paired *p, const size_t *task_n, size_t n_tasks, uint64_t seed, struct err *e);
void paired_close(struct paired *p);
double paired_mean(const struct paired *p, const double *score);
/* a - b. draws (or NULL): [PAIRED_DRAWS] differences of the draws. p_holm is set to p. */
void paired_compare(const struct paired *p, const struct paired_row *a, const struct paired_row *b, struct paired_diff *out, double *draws);
/* Holm's correction of n p-values, in place of p_holm. */
void paired_holm(struct paired_diff **d, size_t n);
/*
 * Max-t over a family: the 95 % point of max_i |d_i(draw) - d_i| / sd_i. draws: n arrays of PAIRED_DRAWS. A family is separated where
 * |d_i| / se_i is above it.
 */
double paired_max_t(const double *const *draws, const struct paired_diff *d, size_t n);

#endif
