/* Growable byte string, always NUL-terminated. A failed allocation makes it sticky-failed; str_ok tells. */
#ifndef CORE_STR_H
#define CORE_STR_H

#include "core/err.h"

struct str {
    char *p; /* never NULL after the first append; use str_c */
    size_t len, cap;
    bool failed;
};
#define STR_INIT {0}

void str_free(struct str *s);
void str_clear(struct str *s);
void str_add(struct str *s, const char *bytes, size_t n);
void str_puts(struct str *s, const char *z);
void str_putc(struct str *s, char c);
void str_printf(struct str *s, const char *fmt, ...) PRINTF_LIKE(2, 3);
void str_vprintf(struct str *s, const char *fmt, va_list ap);
/* Appends code point cp as UTF-8 (cp <= 0x10FFFF, surrogates allowed as 3 bytes). */
void str_utf8(struct str *s, uint32_t cp);
const char *str_c(const struct str *s); /* "" when empty */
int str_ok(const struct str *s, const char *what, struct err *e);

/* UTF-8 decoding: code point at p (of n bytes left, n > 0), length in *len. Invalid bytes: returns 0xFFFD with *len = 1 and *bad = true. */
uint32_t utf8_next(const char *p, size_t n, int *len, bool *bad);
size_t utf8_count(const char *p, size_t n);

/* Numbers as people write them. Whole string must be consumed; false otherwise. Suffixes k, M, G (powers of 1000), 1e6 allowed. */
bool parse_i64(const char *s, int64_t *out);
/* "20K", "20m", "2B": how it is written here (20k, 20M, 2G), for messages; false for what is no number either way. */
bool number_meant(const char *s, char dst[64]);
bool parse_f64(const char *s, double *out); /* finite only */

#endif
