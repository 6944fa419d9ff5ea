#include "core/prog.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "core/live.h"
#include "core/str.h"

/* Part of the log's state in spirit: what the one stderr of the process shows. Set once at start. */
static bool quiet_all;
static double (*fake_now)(void);

double now_s(void)
{
    struct timespec t;
    if (fake_now)
        return fake_now();
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void prog_fake_clock(double (*now)(void))
{
    fake_now = now;
}

void prog_quiet(bool quiet)
{
    quiet_all = quiet;
}

static bool on_terminal(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

static int columns(void)
{
    struct winsize w;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

static void copy_cut(char *dst, size_t cap, const char *src)
{
    size_t n = 0, len = strlen(src);
    while (n < len) {
        int k;
        bool bad = false;
        utf8_next(src + n, len - n, &k, &bad);
        if (n + (size_t)k >= cap)
            break;
        n += (size_t)k;
    }
    memcpy(dst, src, n);
    dst[n] = 0;
}

/* 1234567 -> "1.23M" */
static void short_number(char dst[24], double v)
{
    static const char unit[] = " kMGT";
    int u = 0;
    while (v >= 999.5 && unit[u + 1]) {
        v /= 1000;
        u++;
    }
    const char *fmt = u == 0 && v >= 100 ? "%.0f" : v >= 100 ? "%.0f" : v >= 10 ? "%.1f" : "%.2f";
    int n = snprintf(dst, 23, fmt, v);
    if (u && n > 0 && n < 22) {
        dst[n] = unit[u];
        dst[n + 1] = 0;
    }
}

/* 4521 -> "1h15m" */
static void short_time(char dst[24], double s)
{
    if (s < 0)
        s = 0;
    if (s > 359999999)
        s = 359999999;
    long t = (long)(s + 0.5);
    if (t < 60)
        snprintf(dst, 24, "%lds", t);
    else if (t < 3600)
        snprintf(dst, 24, "%ldm%02lds", t / 60, t % 60);
    else
        snprintf(dst, 24, "%ldh%02ldm", t / 3600, t / 60 % 60);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds for one unit: the median over the recent intervals, so that one checkpoint or one slow start does not move it. 0 = not known yet.
 */
static double unit_seconds(const struct prog *p)
{
    double v[ARRAY_LEN(p->ring)];
    int cap = (int)ARRAY_LEN(p->ring), n = MIN(p->n_ring, cap), m = 0;
    if (p->n_ring < 3)
        return 0;
    for (int i = 1; i < n; i++) {
        int a = (p->n_ring - n + i - 1) % cap, b = (p->n_ring - n + i) % cap;
        int64_t d = p->ring_done[b] - p->ring_done[a];
        if (d > 0)
            v[m++] = (p->ring[b] - p->ring[a]) / (double)d;
    }
    if (m == 0)
        return 0;
    qsort(v, (size_t)m, sizeof *v, by_value);
    return m % 2 ? v[m / 2] : 0.5 * (v[m / 2 - 1] + v[m / 2]);
}

static void format_line(const struct prog *p, double now, char *out, size_t cap)
{
    struct str s = STR_INIT;
    char num[24];
    double per = unit_seconds(p);
    str_printf(&s, "%s  %" PRId64, p->label, p->done);
    if (p->total > 0)
        str_printf(&s, "/%" PRId64 "  %.1f%%", p->total, 100.0 * (double)p->done / (double)p->total);
    if (p->extra[0])
        str_printf(&s, "  %s", p->extra);
    if (per > 0) {
        short_number(num, 1 / per);
        str_printf(&s, "  %s %s/s", num, p->unit[0] ? p->unit : "it");
    }
    if (per > 0 && p->total > p->done) {
        short_time(num, per * (double)(p->total - p->done));
        str_printf(&s, "  eta %s", num);
    } else {
        short_time(num, now - p->t0);
        str_printf(&s, "  %s", num);
    }
    copy_cut(out, cap, str_c(&s));
    str_free(&s);
}

static void show(struct prog *p, double now)
{
    char line[400];
    int width = p->tty ? columns() : (int)sizeof line;
    format_line(p, now, line, (size_t)MIN(MAX(width, 20), (int)sizeof line));
    if (p->tty)
        live_draw(line);
    else
        live_print(line);
    p->t_print = now;
    p->drawn = true;
}

void prog_start(struct prog *p, const char *label, const char *unit, int64_t total)
{
    *p = (struct prog){.total = total, .tty = on_terminal()};
    copy_cut(p->label, sizeof p->label, label);
    copy_cut(p->unit, sizeof p->unit, unit ? unit : "");
    p->t0 = p->t_last = p->t_print = now_s();
}

void prog_update(struct prog *p, int64_t done, const char *extra)
{
    double now = now_s(), since = now - p->t_print;
    int at = p->n_ring % (int)ARRAY_LEN(p->ring);
    p->ring[at] = now;
    p->ring_done[at] = done;
    /* The count must stay a number of updates and never overflow. */
    if (++p->n_ring >= 1 << 30)
        p->n_ring -= 1 << 29;
    p->done = done;
    p->t_last = now;
    copy_cut(p->extra, sizeof p->extra, extra ? extra : "");
    if (quiet_all)
        return;
    double wait = p->tty ? (p->drawn ? 0.25 : 0.5) : MIN(MAX((now - p->t0) / 10, 10.0), 60.0);
    if (since < wait)
        return;
    /* Another program owns the terminal while we run in the background; where nobody can tell (no controlling terminal), it is ours. */
    pid_t owner = p->tty ? tcgetpgrp(STDERR_FILENO) : -1;
    if (owner < 0 || owner == getpgrp())
        show(p, now);
}

void prog_end(struct prog *p)
{
    if (!p->drawn || quiet_all)
        return;
    if (p->tty)
        live_draw(NULL);
    else if (p->t_print < p->t_last)
        show(p, p->t_last);
    p->drawn = false;
}
