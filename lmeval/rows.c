#include "lmeval/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/fs.h"
#include "model/pretok.h"

/* ---- tables ---- */

struct csv {
    const char *path, *p, *end;
    int64_t line;
    char *buf; /* the record's fields one after another, each NUL-terminated */
    size_t n_buf;
    const char *field[CSV_MAX_FIELDS];
    int n;
};

/* One field into buf; *c->p is then a comma, a line end or the end. */
static int csv_field(struct csv *c, int64_t record, struct err *e)
{
    if (c->n == CSV_MAX_FIELDS)
        return ERR(e, E_INPUT, "%s:%" PRId64 ": more than %d columns", c->path, record, CSV_MAX_FIELDS);
    c->field[c->n++] = c->buf + c->n_buf;
    if (c->p < c->end && *c->p == '"') {
        int64_t open = c->line;
        for (c->p++;; c->p++) {
            if (c->p == c->end)
                return ERR(e, E_INPUT, "%s:%" PRId64 ": the quoted field that begins here has no end", c->path, open);
            if (*c->p == '"') {
                c->p++;
                if (c->p == c->end || *c->p != '"')
                    break;
            }
            c->line += *c->p == '\n';
            c->buf[c->n_buf++] = *c->p;
        }
        if (c->p < c->end && *c->p != ',' && *c->p != '\n' && *c->p != '\r')
            return ERR(e, E_INPUT, "%s:%" PRId64 ": a closing quote is followed by '%c'; quotes inside a quoted field are written twice",
                       c->path, c->line, *c->p);
    } else
        while (c->p < c->end && *c->p != ',' && *c->p != '\n' && !(*c->p == '\r' && (c->p + 1 == c->end || c->p[1] == '\n')))
            c->buf[c->n_buf++] = *c->p++;
    c->buf[c->n_buf++] = 0;
    return 0;
}

static int csv_record(struct csv *c, struct err *e)
{
    int64_t record = c->line;
    c->n = 0;
    c->n_buf = 0;
    for (;;) {
        TRY(csv_field(c, record, e));
        if (c->p == c->end || *c->p != ',')
            break;
        c->p++;
    }
    if (c->p < c->end && *c->p == '\r')
        c->p++;
    if (c->p < c->end && *c->p == '\n')
        c->p++;
    return 0;
}

static int check_text(const char *path, const struct file_map *m, struct err *e)
{
    bool ascii;
    int64_t line = 1;
    size_t bad = utf8_check((const char *)m->p, m->len, &ascii);
    const void *zero = memchr(m->p, 0, m->len);
    if (zero)
        bad = MIN(bad, (size_t)((const uint8_t *)zero - m->p));
    if (bad == m->len)
        return 0;
    for (size_t i = 0; i < bad; i++)
        line += m->p[i] == '\n';
    return ERR(e, E_INPUT, "%s:%" PRId64 ": byte 0x%02x at offset %zu is no UTF-8 text", path, line, m->p[bad], bad);
}

int csv_each(const char *path, int (*fn)(void *ctx, int64_t line, const char *const *field, int n, struct err *e), void *ctx, struct err *e)
{
    struct file_map m;
    TRY(map_open(&m, path, e));
    struct csv c = {.path = path, .p = (const char *)m.p, .end = (const char *)m.p + m.len, .line = 1};
    int rc = check_text(path, &m, e);
    c.buf = malloc(m.len + CSV_MAX_FIELDS + 1);
    if (rc == 0 && !c.buf)
        rc = err_nomem(e, m.len, path);
    if (m.len >= 3 && !memcmp(m.p, "\xef\xbb\xbf", 3))
        c.p += 3;
    while (rc == 0 && c.p < c.end) {
        int64_t line = c.line;
        rc = csv_record(&c, e);
        c.line++;
        if (rc == 0 && !(c.n == 1 && !c.field[0][0]))
            rc = fn(ctx, line, c.field, c.n, e);
    }
    free(c.buf);
    map_close(&m);
    return rc ? -1 : 0;
}

/* ---- objects ---- */

/* "PATH:LINE:1:COL: .." of a parser that saw one line -> "PATH:LINE:COL: ..". */
static int one_line(struct err *e, const char *name)
{
    size_t n = strlen(name);
    if (!strncmp(e->msg, name, n) && !strncmp(e->msg + n, ":1:", 3))
        memmove(e->msg + n, e->msg + n + 2, strlen(e->msg + n + 2) + 1);
    return -1;
}

static void row_name(struct jdoc *d, const char *path, int64_t line)
{
    size_t n = strlen(path), room = sizeof d->file - 24;
    snprintf(d->file, sizeof d->file, "%s%s:%" PRId64, n > room ? "..." : "", n > room ? path + n - room : path, line);
}

static int rows_of(const char *path, const json_t *a, int (*fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e), void *ctx,
                   struct err *e)
{
    for (size_t i = 0; i < json_array_size(a); i++) {
        struct jdoc d = {.root = json_array_get(a, i)};
        json_t *inner = json_object_get(d.root, "row");
        row_name(&d, path, (int64_t)i + 1);
        if (json_is_object(inner))
            d.root = inner;
        if (!json_is_object(d.root))
            return ERR(e, E_INPUT, "%s: row %zu is no object", path, i + 1);
        TRY(fn(ctx, (int64_t)i + 1, &d, e));
    }
    return 0;
}

static int whole(const char *path, const struct str *s, int (*fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e), void *ctx,
                 struct err *e)
{
    struct jdoc d;
    TRY(jdoc_parse(&d, path, str_c(s), s->len, e));
    const json_t *a = json_is_object(d.root) ? json_object_get(d.root, "rows") : d.root;
    int rc =
        json_is_array(a) ? rows_of(path, a, fn, ctx, e) : ERR(e, E_INPUT, "%s: neither an array of rows nor an object with \"rows\"", path);
    jdoc_free(&d);
    return rc;
}

static int lines(const char *path, const struct str *s, int (*fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e), void *ctx,
                 struct err *e)
{
    const char *p = str_c(s), *end = p + s->len;
    for (int64_t line = 1; p < end; line++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        struct jdoc d = {0};
        char name[sizeof d.file];
        if (strspn(p, " \t\r") < n) {
            row_name(&d, path, line);
            memcpy(name, d.file, sizeof name);
            if (jdoc_parse(&d, name, p, n, e) != 0)
                return one_line(e, name);
            int rc = json_is_object(d.root) ? fn(ctx, line, &d, e) : ERR(e, E_INPUT, "%s: expected an object", d.file);
            jdoc_free(&d);
            TRY(rc);
        }
        p += n + (eol != NULL);
    }
    return 0;
}

int json_each(const char *path, int (*fn)(void *ctx, int64_t line, const struct jdoc *d, struct err *e), void *ctx, struct err *e)
{
    struct str s = STR_INIT;
    int rc = file_read(path, (size_t)1 << 30, &s, e);
    const char *p = str_c(&s);
    p += strspn(p, " \t\r\n");
    bool rows = *p == '[' || (*p == '{' && !strncmp(p + 1 + strspn(p + 1, " \t\r\n"), "\"rows\"", 6)) ||
                (*p == '{' && !strncmp(p + 1 + strspn(p + 1, " \t\r\n"), "\"features\"", 10));
    if (rc == 0)
        rc = rows ? whole(path, &s, fn, ctx, e) : lines(path, &s, fn, ctx, e);
    str_free(&s);
    return rc ? -1 : 0;
}
