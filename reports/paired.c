#include "reports/paired.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "core/stats.h"


int paired_open(struct paired *p, const size_t *task_n, size_t n_tasks, uint64_t seed, struct err *e)
{
    *p = (struct paired){.n_tasks = n_tasks, .task_n = task_n};
    for (size_t t = 0; t < n_tasks; t++)
        p->n_samples += task_n[t];
    p->times = calloc(PAIRED_DRAWS, p->n_samples + 1);
    if (!p->times)
        return err_nomem(e, (size_t)PAIRED_DRAWS * (p->n_samples + 1), "resampling");
    for (size_t b = 0; b < PAIRED_DRAWS; b++) {
        uint8_t *times = p->times + b * p->n_samples;
        size_t at = 0;
        for (size_t t = 0; t < n_tasks; at += task_n[t], t++)
            for (size_t i = 0; i < task_n[t]; i++) {
                uint8_t *c = &times[at + ctr_below(seed, b, at + i, task_n[t])];
                *c = (uint8_t)MIN(255, *c + 1); /* 255 of one sample: with n samples of probability below 1 / 255! */
            }
    }
    return 0;
}

void paired_close(struct paired *p)
{
    free(p->times);
    *p = (struct paired){0};
}

double paired_mean(const struct paired *p, const double *score)
{
    double sum = 0;
    for (size_t t = 0, at = 0; t < p->n_tasks; at += p->task_n[t], t++) {
        double task = 0;
        for (size_t i = 0; i < p->task_n[t]; i++)
            task += score[at + i];
        sum += task / (double)p->task_n[t];
    }
    return p->n_tasks ? sum / (double)p->n_tasks : NAN;
}

/* Mean over tasks of what draw k took. */
static double draw_mean(const struct paired *p, size_t k, const double *x)
{
    const uint8_t *times = p->times + k * p->n_samples;
    double sum = 0;
    for (size_t t = 0, at = 0; t < p->n_tasks; at += p->task_n[t], t++) {
        double task = 0;
        for (size_t i = 0; i < p->task_n[t]; i++)
            task += times[at + i] * x[at + i];
        sum += task / (double)p->task_n[t];
    }
    return sum / (double)p->n_tasks;
}

void paired_compare(const struct paired *p, const struct paired_row *a, const struct paired_row *b, struct paired_diff *out, double *draws)
{
    double each[PAIRED_SEEDS], spread = 0, mean = 0, sq = 0;
    double *diff = calloc(p->n_samples + 1, sizeof *diff);
    *out = (struct paired_diff){.d = NAN, .se = NAN, .half = NAN, .p = NAN, .p_holm = NAN};
    for (size_t i = 0; diff && i < a->n_seeds; i++)
        for (size_t k = 0; k < b->n_seeds; k++) {
            if (a->seed[i] != b->seed[k])
                continue;
            each[out->seeds++] = paired_mean(p, a->score[i]) - paired_mean(p, b->score[k]);
            for (size_t s = 0; s < p->n_samples; s++)
                diff[s] += a->score[i][s] - b->score[k][s];
            break;
        }
    if (!out->seeds) {
        free(diff);
        return;
    }
    double n = (double)out->seeds;
    out->d = 0;
    for (size_t i = 0; i < out->seeds; i++)
        out->d += each[i] / n;
    for (size_t i = 0; i < out->seeds; i++)
        spread += (each[i] - out->d) * (each[i] - out->d);
    out->se_seeds = out->seeds > 1 ? sqrt(spread / (n - 1) / n) : 0;
    for (size_t k = 0; k < PAIRED_DRAWS; k++) {
        double x = draw_mean(p, k, diff) / n;
        if (draws)
            draws[k] = x;
        mean += x - out->d;
        sq += (x - out->d) * (x - out->d);
    }
    mean /= PAIRED_DRAWS;
    double prompts = MAX(0, sq / PAIRED_DRAWS - mean * mean);
    out->se = sqrt(out->se_seeds * out->se_seeds + prompts);
    out->half = Z95 * out->se;
    out->p = out->se > 0 ? erfc(fabs(out->d) / out->se / sqrt(2)) : out->d == 0 ? 1 : 0;
    out->p_holm = out->p;
    free(diff);
}

static int by_p(const void *x, const void *y)
{
    const struct paired_diff *a = *(struct paired_diff *const *)x, *b = *(struct paired_diff *const *)y;
    return (a->p > b->p) - (a->p < b->p);
}

void paired_holm(struct paired_diff **d, size_t n)
{
    double worst = 0;
    qsort(d, n, sizeof *d, by_p);
    for (size_t i = 0; i < n; i++) {
        worst = MAX(worst, MIN(1, d[i]->p * (double)(n - i)));
        d[i]->p_holm = worst;
    }
}

static int by_value(const void *x, const void *y)
{
    double a = *(const double *)x, b = *(const double *)y;
    return (a > b) - (a < b);
}

double paired_max_t(const double *const *draws, const struct paired_diff *d, size_t n)
{
    double *top = calloc(PAIRED_DRAWS, sizeof *top);
    if (!top)
        return NAN;
    for (size_t i = 0; i < n; i++) {
        double sd = 0;
        for (size_t k = 0; k < PAIRED_DRAWS; k++)
            sd += (draws[i][k] - d[i].d) * (draws[i][k] - d[i].d);
        sd = sqrt(sd / PAIRED_DRAWS);
        for (size_t k = 0; sd > 0 && k < PAIRED_DRAWS; k++)
            top[k] = MAX(top[k], fabs(draws[i][k] - d[i].d) / sd);
    }
    qsort(top, PAIRED_DRAWS, sizeof *top, by_value);
    double q = top[(size_t)(0.95 * PAIRED_DRAWS)];
    free(top);
    return q;
}
