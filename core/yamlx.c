#include "core/yamlx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "core/fs.h"

/* A manifest has some kilobytes; the limits keep a hostile file from costing gigabytes or deep recursion. */
enum { MAX_DEPTH = 32, MAX_PROBLEMS = 20, EXCERPT_COLS = 100 };
#define MAX_YAML_BYTES ((size_t)1 << 20)

/* ---- problems ---- */

/* Start and length of line `line` (1-based) of the text, without its line break. */
static const char *find_line(const struct ydoc *d, int line, size_t *len)
{
    const char *p = d->text, *end = d->text + d->text_len;
    for (int i = 1; i < line && p < end; i++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p));
        p = nl ? nl + 1 : end;
    }
    const char *nl = memchr(p, '\n', (size_t)(end - p));
    *len = (size_t)((nl ? nl : end) - p);
    if (*len && p[*len - 1] == '\r')
        --*len;
    return p;
}

/* One code point of a source line on the terminal: control bytes and broken UTF-8 become '?', a tab one blank. */
static void put_char(struct str *out, uint32_t cp)
{
    if (cp == '\t')
        cp = ' ';
    else if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0) || cp == 0xfffd)
        cp = '?';
    str_utf8(out, cp);
}

/*
 *    14 | - {id: select, sekector: [uniform]}
 *       |                ^~~~~~~~
 * with a window of the line where it is long. width = columns to mark.
 */
static void excerpt(struct str *out, const struct ydoc *d, int line, int col, int width)
{
    size_t len, i = 0;
    const char *p = find_line(d, line, &len);
    int first = col > EXCERPT_COLS - 20 ? col - (EXCERPT_COLS - 40) : 1, at = 1;
    str_printf(out, "%6d | ", line);
    for (; i < len && at < first + EXCERPT_COLS; at++) {
        int k;
        bool bad = false;
        uint32_t cp = utf8_next(p + i, len - i, &k, &bad);
        if (at >= first)
            put_char(out, cp);
        i += (size_t)k;
    }
    str_printf(out, "%s\n       | %*s^", i < len ? "..." : "", col - first, "");
    int last = MIN(at, first + EXCERPT_COLS); /* one past the last shown column */
    for (int c = col + 1; c < col + width && c < last; c++)
        str_putc(out, '~');
    str_putc(out, '\n');
}

static void problem_at(struct str *out, const struct ydoc *d, int line, int col, int width, const char *msg)
{
    str_printf(out, "%s:%d:%d: error: %s\n", d->file, line, col, msg);
    if (d->text_len)
        excerpt(out, d, line, col, width);
}

static int marked_width(const struct ynode *n)
{
    if (n->kind != Y_SCALAR || strchr(n->s, '\n'))
        return 1;
    size_t w = utf8_count(n->s, strlen(n->s)) + (n->quoted ? 2 : 0);
    return w < 1 ? 1 : w > 1000 ? 1000 : (int)w;
}

void y_problem(struct yproblems *p, const struct ynode *at, const char *fmt, ...)
{
    if (p->n++ >= MAX_PROBLEMS)
        return;
    struct str msg = STR_INIT;
    va_list ap;
    va_start(ap, fmt);
    str_vprintf(&msg, fmt, ap);
    va_end(ap);
    if (at)
        problem_at(p->out, p->doc, at->line, at->col, marked_width(at), str_c(&msg));
    else
        str_printf(p->out, "%s: error: %s\n", p->doc->file, str_c(&msg));
    str_free(&msg);
}

int y_finish(struct yproblems *p, struct err *e)
{
    if (p->n == 0)
        return 0;
    TRY(str_ok(p->out, "the list of problems", e));
    /* Whole problems only: an excerpt line starts with a blank, a problem does not. */
    const char *text = str_c(p->out);
    size_t room = sizeof e->msg - 64, end = 0;
    int shown = 0;
    for (size_t i = 0; i < p->out->len;) {
        size_t next = i;
        do {
            const char *nl = strchr(text + next, '\n');
            next = nl ? (size_t)(nl - text) + 1 : p->out->len;
        } while (next < p->out->len && text[next] == ' ');
        if (next > room && shown > 0)
            break;
        shown++;
        i = end = next;
    }
    while (end > 0 && text[end - 1] == '\n')
        end--;
    if (shown < p->n)
        return ERR(e, E_USAGE, "%.*s\n... and %d more problem%s", (int)end, text, p->n - shown, p->n - shown == 1 ? "" : "s");
    return ERR(e, E_USAGE, "%.*s", (int)end, text);
}

/* ---- reading ---- */

struct load {
    struct ydoc *d;
    struct arena *a;
    yaml_parser_t parser;
    struct err *e;
};

static int fail(struct load *l, int line, int col, const char *msg)
{
    struct str s = STR_INIT;
    problem_at(&s, l->d, line, col, 1, msg);
    while (s.len && s.p[s.len - 1] == '\n')
        s.p[--s.len] = 0;
    ERR(l->e, E_USAGE, "%s", str_c(&s));
    str_free(&s);
    return -1;
}

static int fail_at(struct load *l, const yaml_mark_t *m, const char *msg)
{
    return fail(l, (int)m->line + 1, (int)m->column + 1, msg);
}

/* libyaml's own complaint. Its reader gives a byte offset, the scanner and the parser a mark. */
static int fail_yaml(struct load *l)
{
    const yaml_parser_t *y = &l->parser;
    char msg[400];
    if (y->error == YAML_MEMORY_ERROR)
        return err_nomem(l->e, 0, l->d->file);
    snprintf(msg, sizeof msg, "%s%s%s", y->problem ? y->problem : "broken YAML", y->context ? " " : "", y->context ? y->context : "");
    if (y->error != YAML_READER_ERROR)
        return fail_at(l, &y->problem_mark, msg);
    int line = 1, col = 1;
    for (size_t i = 0; i < l->d->text_len && i < y->problem_offset; i++) {
        if (l->d->text[i] == '\n') {
            line++;
            col = 1;
        } else if (((unsigned char)l->d->text[i] & 0xc0) != 0x80)
            col++;
    }
    return fail(l, line, col, msg);
}

static int next_event(struct load *l, yaml_event_t *ev)
{
    return yaml_parser_parse(&l->parser, ev) ? 0 : fail_yaml(l);
}

static struct ynode *new_node(struct load *l, enum ynode_kind kind, const yaml_event_t *ev)
{
    struct ynode *n = arena_alloc(l->a, sizeof *n);
    if (!n) {
        arena_ok(l->a, l->d->file, l->e);
        return NULL;
    }
    n->kind = kind;
    n->line = (int)ev->start_mark.line + 1;
    n->col = (int)ev->start_mark.column + 1;
    return n;
}

static int read_node(struct load *l, const yaml_event_t *ev, int depth, struct ynode **out);

static int read_scalar(struct load *l, const yaml_event_t *ev, struct ynode **out)
{
    const char *v = (const char *)ev->data.scalar.value;
    size_t len = ev->data.scalar.length;
    if (memchr(v, 0, len))
        return fail_at(l, &ev->start_mark, "text with a NUL byte");
    struct ynode *n = new_node(l, Y_SCALAR, ev);
    if (!n)
        return -1;
    n->quoted = ev->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    n->s = arena_strndup(l->a, v, len);
    *out = n;
    return n->s ? 0 : arena_ok(l->a, l->d->file, l->e);
}

/* Items of a sequence or keys and values in turn of a map, up to the end event; v is the caller's to free. */
struct items {
    struct ynode **v;
    size_t n, cap;
};

static int read_items(struct load *l, yaml_event_type_t stop, int depth, struct items *it)
{
    for (;;) {
        yaml_event_t ev;
        TRY(next_event(l, &ev));
        if (ev.type == stop) {
            yaml_event_delete(&ev);
            return 0;
        }
        int rc = 0;
        if (it->n == it->cap) {
            size_t cap = it->cap ? it->cap * 2 : 8;
            struct ynode **v = realloc(it->v, cap * sizeof *v);
            if (v) {
                it->v = v;
                it->cap = cap;
            } else
                rc = err_nomem(l->e, cap * sizeof *v, l->d->file);
        }
        bool key = stop == YAML_MAPPING_END_EVENT && it->n % 2 == 0;
        if (rc == 0 && key && ev.type != YAML_SCALAR_EVENT && ev.type != YAML_ALIAS_EVENT)
            rc = fail_at(l, &ev.start_mark, "a key must be plain text");
        if (rc == 0)
            rc = read_node(l, &ev, depth, &it->v[it->n]);
        yaml_event_delete(&ev);
        if (rc != 0)
            return -1;
        if (key && !it->v[it->n]->quoted && strcmp(it->v[it->n]->s, "<<") == 0)
            return fail(l, it->v[it->n]->line, it->v[it->n]->col, "merge keys ('<<') are not supported; write the values out");
        it->n++;
    }
}

static int by_text(const void *a, const void *b)
{
    const struct ynode *x = *(const struct ynode *const *)a, *y = *(const struct ynode *const *)b;
    int c = strcmp(x->s, y->s);
    if (c != 0)
        return c;
    return x->line != y->line ? (x->line > y->line) - (x->line < y->line) : (x->col > y->col) - (x->col < y->col);
}

/* Sorted copy, neighbours compared: linear in what a hostile file can hold. The first repetition in the file is reported. */
static int check_duplicates(struct load *l, const struct ynode *map)
{
    if (map->n < 2)
        return 0;
    struct ynode **v = malloc(map->n * sizeof *v);
    if (!v)
        return err_nomem(l->e, map->n * sizeof *v, l->d->file);
    memcpy(v, map->key, map->n * sizeof *v);
    qsort(v, map->n, sizeof *v, by_text);
    const struct ynode *twice = NULL, *before = NULL;
    for (size_t i = 1; i < map->n; i++)
        if (strcmp(v[i - 1]->s, v[i]->s) == 0 &&
            (!twice || v[i]->line < twice->line || (v[i]->line == twice->line && v[i]->col < twice->col))) {
            twice = v[i];
            before = v[i - 1];
        }
    free(v);
    if (!twice)
        return 0;
    char msg[300];
    snprintf(msg, sizeof msg, "duplicate key '%.150s', first at line %d", twice->s, before->line);
    return fail(l, twice->line, twice->col, msg);
}

static int read_map(struct load *l, const yaml_event_t *ev, int depth, struct ynode **out)
{
    struct ynode *n = new_node(l, Y_MAP, ev);
    struct items it = {0};
    if (!n)
        return -1;
    int rc = read_items(l, YAML_MAPPING_END_EVENT, depth + 1, &it);
    if (rc == 0) {
        n->n = it.n / 2;
        n->key = arena_array(l->a, n->n, sizeof(struct ynode *));
        n->item = arena_array(l->a, n->n, sizeof(struct ynode *));
        rc = arena_ok(l->a, l->d->file, l->e);
    }
    for (size_t i = 0; rc == 0 && i < n->n; i++) {
        n->key[i] = it.v[2 * i];
        n->item[i] = it.v[2 * i + 1];
    }
    free(it.v);
    if (rc == 0)
        rc = check_duplicates(l, n);
    *out = n;
    return rc;
}

static int read_seq(struct load *l, const yaml_event_t *ev, int depth, struct ynode **out)
{
    struct ynode *n = new_node(l, Y_SEQ, ev);
    struct items it = {0};
    if (!n)
        return -1;
    int rc = read_items(l, YAML_SEQUENCE_END_EVENT, depth + 1, &it);
    if (rc == 0) {
        n->n = it.n;
        n->item = arena_array(l->a, n->n, sizeof(struct ynode *));
        rc = arena_ok(l->a, l->d->file, l->e);
    }
    if (rc == 0 && it.n)
        memcpy(n->item, it.v, it.n * sizeof *it.v);
    free(it.v);
    *out = n;
    return rc;
}

static int read_node(struct load *l, const yaml_event_t *ev, int depth, struct ynode **out)
{
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (ev->type == YAML_ALIAS_EVENT)
        return fail_at(l, &ev->start_mark, "aliases ('*name') are not supported; write the value out");
    if (ev->type == YAML_SCALAR_EVENT) {
        anchor = ev->data.scalar.anchor;
        tag = ev->data.scalar.tag;
    } else if (ev->type == YAML_SEQUENCE_START_EVENT) {
        anchor = ev->data.sequence_start.anchor;
        tag = ev->data.sequence_start.tag;
    } else if (ev->type == YAML_MAPPING_START_EVENT) {
        anchor = ev->data.mapping_start.anchor;
        tag = ev->data.mapping_start.tag;
    } else
        return fail_at(l, &ev->start_mark, "expected a value");
    if (anchor)
        return fail_at(l, &ev->start_mark, "anchors ('&name') are not supported; write the value out");
    if (tag)
        return fail_at(l, &ev->start_mark, "tags ('!name') are not supported; the schema knows every type");
    if (depth > MAX_DEPTH) {
        char msg[64];
        snprintf(msg, sizeof msg, "nested more than %d levels deep", MAX_DEPTH);
        return fail_at(l, &ev->start_mark, msg);
    }
    if (ev->type == YAML_SCALAR_EVENT)
        return read_scalar(l, ev, out);
    return ev->type == YAML_MAPPING_START_EVENT ? read_map(l, ev, depth, out) : read_seq(l, ev, depth, out);
}

/* Reads one event and demands its type; why_not is said otherwise. */
static int expect(struct load *l, yaml_event_type_t type, const char *why_not)
{
    yaml_event_t ev;
    TRY(next_event(l, &ev));
    int rc = 0;
    if (ev.type != type)
        rc = fail_at(l, &ev.start_mark, why_not);
    else if (type == YAML_DOCUMENT_START_EVENT && ev.data.document_start.tag_directives.start != ev.data.document_start.tag_directives.end)
        rc = fail_at(l, &ev.start_mark, "tag directives ('%TAG') are not supported");
    yaml_event_delete(&ev);
    return rc;
}

static int read_document(struct load *l)
{
    yaml_event_t ev;
    TRY(expect(l, YAML_STREAM_START_EVENT, "no YAML stream"));
    TRY(expect(l, YAML_DOCUMENT_START_EVENT, "the file is empty"));
    TRY(next_event(l, &ev));
    int rc = read_node(l, &ev, 1, &l->d->root);
    yaml_event_delete(&ev);
    if (rc != 0)
        return -1;
    TRY(expect(l, YAML_DOCUMENT_END_EVENT, "expected the end of the document"));
    return expect(l, YAML_STREAM_END_EVENT, "a second document; one file holds one");
}

int ydoc_parse(struct ydoc *d, struct arena *a, const char *name, const char *text, size_t n, struct err *e)
{
    *d = (struct ydoc){.file = arena_strdup(a, name)};
    if (n > MAX_YAML_BYTES)
        return ERR(e, E_USAGE, "%s: %zu bytes, the limit for YAML is %zu", name, n, MAX_YAML_BYTES);
    d->text = arena_strndup(a, text, n);
    d->text_len = n;
    TRY(arena_ok(a, name, e));
    struct load l = {.d = d, .a = a, .e = e};
    if (!yaml_parser_initialize(&l.parser))
        return err_nomem(e, 0, "the YAML parser");
    yaml_parser_set_input_string(&l.parser, (const unsigned char *)d->text, n);
    yaml_parser_set_encoding(&l.parser, YAML_UTF8_ENCODING);
    int rc = read_document(&l);
    yaml_parser_delete(&l.parser);
    if (rc != 0)
        d->root = NULL;
    return rc;
}

int ydoc_load(struct ydoc *d, struct arena *a, const char *path, struct err *e)
{
    struct str s = STR_INIT;
    *d = (struct ydoc){0};
    int rc = file_read(path, MAX_YAML_BYTES, &s, e);
    if (rc == 0)
        rc = ydoc_parse(d, a, path, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

const struct ynode *y_get(const struct ynode *map, const char *key)
{
    if (!map || map->kind != Y_MAP)
        return NULL;
    for (size_t i = 0; i < map->n; i++)
        if (strcmp(map->key[i]->s, key) == 0)
            return map->item[i];
    return NULL;
}
