/*
 * JSON writing in call order. Style pretty: two spaces indent, "key": value. Style compact: separators ", " and ": " on one line (the form
 * of Python's json.dumps). Floats: shortest form that reads back equal (%.17g trimmed); a non-finite number is written as null and sets
 * `bad`, which jw_ok reports as E_NUMERIC. ascii = true escapes everything outside 0x20..0x7e as Python's ensure_ascii does.
 */
#ifndef CORE_JWRITE_H
#define CORE_JWRITE_H

#include "core/str.h"

struct jw {
    struct str *out;
    bool pretty, ascii, bad;
    int depth;
    bool first[64]; /* per depth: nothing written yet */
    bool after_key;
};
void jw_init(struct jw *w, struct str *out, bool pretty);
void jw_obj(struct jw *w);
void jw_end_obj(struct jw *w);
void jw_arr(struct jw *w);
void jw_end_arr(struct jw *w);
void jw_key(struct jw *w, const char *key);
void jw_str(struct jw *w, const char *z);
void jw_strn(struct jw *w, const char *p, size_t n);
void jw_i64(struct jw *w, int64_t v);
void jw_f64(struct jw *w, double v);
void jw_bool(struct jw *w, bool v);
void jw_null(struct jw *w);
/* key and value at once */
void jw_kstr(struct jw *w, const char *k, const char *z);
void jw_ki64(struct jw *w, const char *k, int64_t v);
void jw_kf64(struct jw *w, const char *k, double v);
void jw_kbool(struct jw *w, const char *k, bool v);
int jw_ok(const struct jw *w, const char *what, struct err *e);

/* Shortest decimal that reads back equal, as Python's repr(float) prints it ("1.0", "0.1", "1e-05"). */
void fmt_f64(char dst[32], double v);

#endif
