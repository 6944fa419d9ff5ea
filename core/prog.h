/*
 * One live progress line on stderr: "label  done/total  12.3%  extra  rate  eta". On a terminal it is redrawn at 4 Hz after 0.5 s;
 * otherwise a full line every 10 s, stretching to 60 s. ETA comes from the median of recent intervals, none before 3 updates. Nothing with
 * --quiet. `now` can be faked in tests.
 */
#ifndef CORE_PROG_H
#define CORE_PROG_H

#include "core/base.h"

struct prog {
    char label[96], unit[16], extra[160];
    int64_t done, total;
    double t0, t_last, t_print, ring[32];
    int64_t ring_done[32];
    int n_ring;
    bool tty, drawn;
};
void prog_start(struct prog *p, const char *label, const char *unit, int64_t total);
/* extra: loss, accuracy so far ... may be NULL */
void prog_update(struct prog *p, int64_t done, const char *extra);
void prog_end(struct prog *p);
void prog_quiet(bool quiet);
double now_s(void);                        /* monotonic seconds */
void prog_fake_clock(double (*now)(void)); /* tests */

#endif
