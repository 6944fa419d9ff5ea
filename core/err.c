#include "core/err.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

noreturn void bug_at(const char *file, int line, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "BUG: %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    abort();
}

/* A cut message says so, and is not cut inside a UTF-8 sequence. */
static void mark_cut(char *msg, size_t cap)
{
    static const char dots[] = " ...";
    size_t at = cap - sizeof dots;
    while (at > 0 && ((unsigned char)msg[at] & 0xc0) == 0x80)
        at--;
    memcpy(msg + at, dots, sizeof dots);
}

int err_set(struct err *e, enum err_code code, const char *file, int line, const char *fmt, ...)
{
    /* Formatted aside: an argument may be the old e->msg. */
    char tmp[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    if (n < 0)
        snprintf(tmp, sizeof tmp, "error message could not be formatted (%.200s)", fmt);
    else if ((size_t)n >= sizeof tmp)
        mark_cut(tmp, sizeof tmp);
    e->code = code;
    e->src_file = file;
    e->src_line = line;
    memcpy(e->msg, tmp, strlen(tmp) + 1);
    return -1;
}

int err_wrap(struct err *e, const char *fmt, ...)
{
    char tmp[sizeof e->msg];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    if (n < 0)
        return -1;
    size_t used = MIN((size_t)n, sizeof tmp - 1);
    int m = snprintf(tmp + used, sizeof tmp - used, ": %s", e->msg);
    if (m < 0 || used + (size_t)m >= sizeof tmp)
        mark_cut(tmp, sizeof tmp);
    memcpy(e->msg, tmp, strlen(tmp) + 1);
    return -1;
}

int err_sys(struct err *e, const char *what, const char *path)
{
    int no = errno;
    char why[128];
    if (strerror_r(no, why, sizeof why) != 0)
        snprintf(why, sizeof why, "error %d", no);
    bool input = no == ENOENT || no == EISDIR || no == ENOTDIR;
    return ERR(e, input ? E_INPUT : E_ENV, "cannot %s '%s': %s", what, path, why);
}

int err_nomem(struct err *e, size_t bytes, const char *what)
{
    if (bytes == 0)
        return ERR(e, E_ENV, "out of memory for %s", what);
    return ERR(e, E_ENV, "out of memory: %zu bytes for %s", bytes, what);
}

/* Edit distance where swapping two neighbours counts as one edit (optimal string alignment). */
static size_t edit_distance(const char *a, size_t na, const char *b, size_t nb)
{
    size_t row[3][65];
    for (size_t j = 0; j <= nb; j++)
        row[0][j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t *cur = row[i % 3], *prev = row[(i + 2) % 3], *prev2 = row[(i + 1) % 3];
        cur[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t d = prev[j - 1] + (a[i - 1] != b[j - 1]);
            d = MIN(d, prev[j] + 1);
            d = MIN(d, cur[j - 1] + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d = MIN(d, prev2[j - 2] + 1);
            cur[j] = d;
        }
    }
    return row[na % 3][nb];
}

const char *nearest_word(const char *word, const char *const *words, size_t n)
{
    size_t len = strlen(word), limit = MAX((size_t)2, len / 3), best = limit + 1;
    const char *found = NULL;
    if (len > 64)
        return NULL;
    for (size_t i = 0; i < n; i++) {
        size_t m = words[i] ? strlen(words[i]) : 0;
        if (m == 0 || m > 64)
            continue;
        size_t d = edit_distance(word, len, words[i], m);
        /* A word of two letters is within two edits of any other: at least one letter must survive. */
        if (d < best && d < MAX(len, m)) {
            best = d;
            found = words[i];
        }
    }
    return found;
}
