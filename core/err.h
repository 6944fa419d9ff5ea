/*
 * Errors. Every fallible function returns int, 0 = ok, -1 = failed, and takes `struct err *e` last; e is untouched on success.
 * The message is good enough to print as it is: lower case, no full stop, what failed first, the subject in single quotes, the value
 * seen, the limit, and what to do where there is something. Codes are the process' exit codes. The caller owns e, on its stack.
 */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#include <stdarg.h>

#include "core/base.h"

enum err_code {
    E_OK = 0,
    E_CHECK = 1,       /* a check failed */
    E_USAGE = 2,       /* usage or manifest */
    E_INPUT = 3,       /* input missing or corrupt */
    E_ENV = 4,         /* environment: memory, disk, device, a missing program */
    E_NUMERIC = 5,     /* NaN or Inf where a number is needed */
    E_INTERRUPTED = 130
};

struct err {
    enum err_code code;
    char msg[2048];       /* may hold several lines (a manifest reports all its errors at once) */
    const char *src_file; /* where in our source */
    int src_line;
};

#define ERR_INIT {.code = E_OK}

/* Sets *e and yields -1: `return ERR(e, E_INPUT, "tensor '%s': ...", name);` */
#define ERR(e, code, ...) err_set((e), (code), __FILE__, __LINE__, __VA_ARGS__)
#define TRY(x)           \
    do {                 \
        if ((x) != 0)    \
            return -1;   \
    } while (0)

int err_set(struct err *e, enum err_code code, const char *file, int line, const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Puts "CONTEXT: " before the message of an error that is set; returns -1. */
int err_wrap(struct err *e, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* E_ENV or E_INPUT from errno: "cannot WHAT 'PATH': No space left on device". ENOENT, EISDIR, ENOTDIR give E_INPUT. Returns -1. */
int err_sys(struct err *e, const char *what, const char *path);
int err_nomem(struct err *e, size_t bytes, const char *what);

/* The nearest of n words to `word` by edit distance, or NULL when none is near (distance > max(2, len/3)). */
const char *nearest_word(const char *word, const char *const *words, size_t n);

#endif
