/* Text the generator needs as Python does it: Unicode white space, lists of lines, lists of strings. */
#ifndef RULER_TEXT_H
#define RULER_TEXT_H

#include "core/err.h"
#include "core/str.h"

bool py_isspace(uint32_t cp); /* str.isspace of one character; also what re's \s matches */
/* Every run of white space becomes one space (nothing is stripped). */
void squeeze(struct str *out, const char *p, size_t n);
/* " ".join(text.strip().split()) */
void flatten(struct str *out, const char *p, size_t n);
/* str.strip(): narrows [*p, *p + *n). */
void py_strip(const char **p, size_t *n);
/* repr() of a list of strings. */
void py_repr_list(struct str *out, const char *const *v, size_t n);
void str_i64(struct str *s, int64_t v); /* in decimal */
/* All occurrences of `from` (not empty) in s become `to`. */
void str_replace(struct str *s, const char *from, const char *to);
/* Index of z in p[0..n), or -1. */
int64_t find_bytes(const char *p, size_t n, const char *z, size_t zn);
/* str.lower, without the rule for a final sigma. */
void py_lower(struct str *out, const char *p, size_t n);

/* List of owned strings. */
struct list {
    char **v;
    size_t n, cap;
};
void list_free(struct list *l);
void list_clear(struct list *l);
int list_add(struct list *l, const char *p, size_t n, struct err *e);
/* Lines of a file; strip_right takes white space off their ends and leaves empty lines out. */
int list_load(struct list *l, const char *path, bool strip_right, struct err *e);
/* sorted(set(l)), by bytes (= by code point). */
void list_sort_unique(struct list *l);
/* Index of a word in a sorted list, -1 = not there. */
int64_t list_find(const struct list *l, const char *p, size_t n);

/* .zst files are unpacked (at most max_bytes), others read as they are. */
int text_load(const char *path, size_t max_bytes, struct str *out, struct err *e);

#endif
