#include "core/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/live.h"

/* The log is the one thing that everybody shares; its state stands behind one lock. */
enum { MAX_ONCE = 512 };
static struct {
    pthread_mutex_t lock;
    enum log_level level;
    FILE *tee;
    char live[512]; /* what stands on the terminal's last line */
    char *once[MAX_ONCE];
    size_t n_once;
} L = {.lock = PTHREAD_MUTEX_INITIALIZER, .level = LOG_INFO};

void log_set_level(enum log_level l)
{
    pthread_mutex_lock(&L.lock);
    L.level = l;
    pthread_mutex_unlock(&L.lock);
}

enum log_level log_get_level(void)
{
    pthread_mutex_lock(&L.lock);
    enum log_level l = L.level;
    pthread_mutex_unlock(&L.lock);
    return l;
}

static const char *prefix(enum log_level l)
{
    switch (l) {
    case LOG_ERROR:
        return "error: ";
    case LOG_WARN:
        return "warning: ";
    case LOG_INFO:
        return "";
    case LOG_DEBUG:
        return "debug: ";
    }
    BUG("log level %d", (int)l);
}

/* "\r", the line, and "erase to the end of the line". */
static void redraw(const char *line)
{
    fprintf(stderr, "\r%s\033[K", line);
    fflush(stderr);
}

void live_draw(const char *line)
{
    pthread_mutex_lock(&L.lock);
    bool was = L.live[0];
    snprintf(L.live, sizeof L.live, "%s", line ? line : "");
    if (was || L.live[0])
        redraw(L.live);
    pthread_mutex_unlock(&L.lock);
}

/* Under the lock. */
static void put_line(const char *pre, const char *text)
{
    if (L.live[0])
        redraw("");
    fprintf(stderr, "%s%s\n", pre, text);
    if (L.live[0])
        redraw(L.live);
}

void live_print(const char *line)
{
    pthread_mutex_lock(&L.lock);
    put_line("", line);
    pthread_mutex_unlock(&L.lock);
}

static void tee_line(const char *pre, const char *text)
{
    char stamp[32] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm))
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ ", &tm);
    fprintf(L.tee, "%s%s%s\n", stamp, pre, text);
    fflush(L.tee);
}

static void log_v(enum log_level l, const char *fmt, va_list ap) PRINTF_LIKE(2, 0);
static void log_v(enum log_level l, const char *fmt, va_list ap)
{
    char text[4096];
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0)
        snprintf(text, sizeof text, "(message could not be formatted: %.100s)", fmt);
    else if ((size_t)n >= sizeof text)
        memcpy(text + sizeof text - 5, " ...", 5);
    pthread_mutex_lock(&L.lock);
    if (l <= L.level)
        put_line(prefix(l), text);
    /* A run's log keeps what --quiet hides. */
    if (L.tee && (l <= L.level || l <= LOG_INFO))
        tee_line(prefix(l), text);
    pthread_mutex_unlock(&L.lock);
}

void log_msg(enum log_level l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    log_v(l, fmt, ap);
    va_end(ap);
}

void log_warn_once(const char *key, const char *fmt, ...)
{
    bool seen = false;
    pthread_mutex_lock(&L.lock);
    for (size_t i = 0; i < L.n_once && !seen; i++)
        seen = strcmp(L.once[i], key) == 0;
    if (!seen && L.n_once < MAX_ONCE) {
        char *copy = strdup(key);
        if (copy)
            L.once[L.n_once++] = copy;
    }
    pthread_mutex_unlock(&L.lock);
    if (seen)
        return;
    va_list ap;
    va_start(ap, fmt);
    log_v(LOG_WARN, fmt, ap);
    va_end(ap);
}

void log_tee(const char *path)
{
    FILE *f = path ? fopen(path, "a") : NULL;
    pthread_mutex_lock(&L.lock);
    FILE *old = L.tee;
    L.tee = f;
    pthread_mutex_unlock(&L.lock);
    if (old)
        fclose(old);
    if (path && !f)
        log_warn("cannot write the log '%s'; going on without it", path);
}
