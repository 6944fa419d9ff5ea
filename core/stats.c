#include "core/stats.h"

#include <math.h>

void wilson(double p, double n, double *lo, double *hi)
{
    double over = 1 + Z95 * Z95 / n, mid = (p + Z95 * Z95 / (2 * n)) / over;
    double half = Z95 * sqrt(p * (1 - p) / n + Z95 * Z95 / (4 * n * n)) / over;
    *lo = fmax(0, mid - half);
    *hi = fmin(1, mid + half);
}
