/*
 * Random numbers. (1) MT19937 with the exact semantics of CPython's `random` and numpy's legacy generator (spec: RULER's data depend on
 * them). (2) A counter-based generator (Philox4x32-10) for training: value = f(seed, stream, index), so that order of evaluation, threads
 * and resume do not matter.
 */
#ifndef CORE_RNG_H
#define CORE_RNG_H

#include "core/base.h"

struct mt19937 {
    uint32_t mt[624];
    int idx;
};

uint32_t mt_u32(struct mt19937 *r);
/* CPython: random.seed(int) with |a| given as 64 bits (init_by_array of its 32-bit little-endian digits; 0 gives [0]). */
void py_seed(struct mt19937 *r, uint64_t a);
/* The same for any size: the n >= 1 digits themselves, least significant first, without leading zero digits. */
void py_seed_digits(struct mt19937 *r, const uint32_t *digits, size_t n);
/* getrandbits(b) for 1 <= b <= 128; words least significant first. hi is 0 for b <= 64. */
void py_getrandbits(struct mt19937 *r, int b, uint64_t *lo, uint64_t *hi);
uint64_t py_below(struct mt19937 *r, uint64_t n);            /* _randbelow, n >= 1 */
double py_random(struct mt19937 *r);                         /* [0,1), 53 bits */
int64_t py_randint(struct mt19937 *r, int64_t a, int64_t b); /* inclusive */
/* shuffle in place of an index array */
void py_shuffle(struct mt19937 *r, int64_t *v, size_t n);
/* sample(range(n), k) into out[k]; 0 <= k <= n (else BUG); scratch memory is allocated, -1 without memory. */
int py_sample(struct mt19937 *r, int64_t n, int64_t k, int64_t *out);
/* choices(range(n), k=k) without weights */
void py_choices(struct mt19937 *r, int64_t n, int64_t k, int64_t *out);

/* numpy legacy: np.random.seed(int), np.random.randint(lo, hi) (hi exclusive, 32-bit masked rejection) */
void np_seed(struct mt19937 *r, uint32_t s);
int64_t np_randint(struct mt19937 *r, int64_t lo, int64_t hi);

/* Philox4x32-10: four words of block `index` of stream `stream` under `seed`. */
void philox(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]);
/* One value each; index counts values. Uniform in [0,1). The normal is the inverse distribution function of a uniform, made of correctly
   rounded operations alone (+ - * / sqrt): the same bits with any libm. below: 0..n-1, no value favoured by more than n / 2^64. */
double ctr_uniform(uint64_t seed, uint64_t stream, uint64_t index);
double ctr_normal(uint64_t seed, uint64_t stream, uint64_t index);
uint64_t ctr_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);
/* x with P(N(0,1) <= x) = p, 0 < p < 1: the rational approximation behind ctr_normal, the same bits everywhere. */
double normal_quantile(double p);
/* Permutation of 0..n-1 (Fisher-Yates on the counter stream). */
void ctr_permutation(uint64_t seed, uint64_t stream, int64_t *v, size_t n);

#endif
