/* Intervals of shares. Thread-safe; no errors. */
#ifndef CORE_STATS_H
#define CORE_STATS_H

/* Two-sided 95 % point of the normal distribution. */
#define Z95 1.959963984540054

/* Wilson's 95 % interval of a share p of n draws: inside [0, 1], and of some width at p = 0 and 1. n may be an effective number:
 * p (1 - p) / SE^2 for draws that are not alike. */
void wilson(double p, double n, double *lo, double *hi);

#endif
