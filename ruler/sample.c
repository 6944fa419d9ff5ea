#include "ruler/sample.h"

#include <stdlib.h>
#include <string.h>

#include "core/fs.h"

/* A line of JSON. Predictions of other programs may hold zero bytes, which the reader refuses: the scorer takes control characters as
 * newlines. */
static int parse_line(struct jdoc *d, const char *name, const char *p, size_t n, struct err *e)
{
    static const char zero[] = "\\u0000";
    if (find_bytes(p, n, zero, 6) < 0)
        return jdoc_parse(d, name, p, n, e);
    struct str s = STR_INIT;
    for (size_t i = 0; i < n;) {
        if (p[i] != '\\') {
            str_putc(&s, p[i++]);
        } else if (n - i >= 6 && memcmp(p + i, zero, 6) == 0) {
            str_puts(&s, "\\n");
            i += 6;
        } else { /* an escape is two characters, whatever the second one is */
            str_add(&s, p + i, MIN(n - i, 2));
            i += 2;
        }
    }
    int rc = str_ok(&s, name, e);
    rc = rc ? rc : jdoc_parse(d, name, str_c(&s), s.len, e);
    str_free(&s);
    return rc;
}

int jsonl_each(const char *path, bool allow_torn, size_t *good, line_fn fn, void *ctx, struct err *e)
{
    struct file_map m;
    int64_t line = 0;
    int rc = 0;
    TRY(map_open(&m, path, e));
    size_t i = 0;
    while (!rc && i < m.len) {
        const uint8_t *nl = memchr(m.p + i, '\n', m.len - i);
        size_t end = nl ? (size_t)(nl - m.p) : m.len;
        struct jdoc d = {0};
        struct err pe = ERR_INIT;
        int bad = nl || !allow_torn ? parse_line(&d, path, (const char *)m.p + i, end - i, &pe) : -1;
        if (bad) {
            if (!(allow_torn && (!nl || end + 1 == m.len))) {
                rc = ERR(e, pe.code ? pe.code : E_INPUT, "line %" PRId64 ": %s", line + 1, pe.msg);
            }
            jdoc_free(&d);
            break;
        }
        rc = fn(ctx, line++, &d, e);
        jdoc_free(&d);
        i = nl ? end + 1 : end;
    }
    if (good)
        *good = i;
    map_close(&m);
    return rc ? -1 : 0;
}

int tasks_present(const struct task_set *s, const char *dir, const char *file, const char *tasks,
                  const struct ruler_task *out[RULER_MAX_TASKS], size_t *n, struct err *e)
{
    char path[1024], sub[64], near[96];
    bool named[RULER_MAX_TASKS] = {false};
    *n = 0;
    for (const char *t = tasks; t;) {
        size_t len = strcspn(t, ",");
        const struct ruler_task *k = task_set_find(s, t, len);
        if (!k)
            return ERR(e, E_USAGE, "unknown RULER task '%.*s'%s", (int)MIN(len, 60), t, task_set_hint(s, t, len, near));
        named[k - s->task] = true;
        t = t[len] ? t + len + 1 : NULL;
    }
    for (size_t i = 0; i < s->n; i++) {
        const char *name = s->task[i].name;
        if (tasks && !named[i])
            continue;
        snprintf(sub, sizeof sub, "%s/%s", name, file);
        if (file_exists(path_join(path, dir, sub)))
            out[(*n)++] = &s->task[i];
        else if (named[i])
            return ERR(e, E_INPUT, "RULER task '%s': no file '%s'", name, path);
    }
    if (!*n)
        return ERR(e, E_INPUT, "'%s': holds no RULER task (no TASK/%s)", dir, file);
    return 0;
}

int refs_of(const json_t *list, const char *what, const char *refs[MAX_REFS], size_t *n, struct err *e)
{
    *n = json_array_size(list);
    if (*n < 1 || *n > MAX_REFS)
        return ERR(e, E_INPUT, "%s: %zu outputs; the range is 1 to %d", what, *n, MAX_REFS);
    for (size_t i = 0; i < *n; i++) {
        refs[i] = json_string_value(json_array_get(list, i));
        if (!refs[i])
            return ERR(e, E_INPUT, "%s: outputs[%zu] is not a string", what, i);
    }
    return 0;
}

/* ---- answers ---- */

struct place {
    int64_t at;
    size_t ref;
};
static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->ref > y->ref) - (x->ref < y->ref);
}

/* The word's first place in the numbered list: "N. word" followed by a blank and a digit or by the end of the line. */
static int64_t place_in_list(const char *list, size_t n, const char *word)
{
    size_t wn = strlen(word);
    for (size_t i = 0; i < n;) {
        int64_t at = find_bytes(list + i, n - i, word, wn);
        if (at < 0)
            return -1;
        size_t p = i + (size_t)at, q = p + wn;
        bool before = p >= 3 && list[p - 1] == ' ' && list[p - 2] == '.' && list[p - 3] >= '0' && list[p - 3] <= '9';
        bool after = q == n || (q + 1 < n && list[q] == ' ' && list[q + 1] >= '0' && list[q + 1] <= '9');
        if (before && after)
            return (int64_t)p;
        i = p + 1;
    }
    return -1;
}

/* The last numbered list of a cwe prompt. */
static const char *last_list(const char *prompt, size_t *n)
{
    static const char before[] = "Memorize the ones that appear most often.", after[] = "Question: What are";
    const char *p = prompt, *at = prompt;
    while ((p = strstr(p, before)))
        at = p += sizeof before - 1;
    while (*at == ' ' || *at == '\n')
        at++;
    const char *q = strstr(at, after);
    *n = q ? (size_t)(q - at) : strlen(at);
    while (*n && (at[*n - 1] == '\n' || at[*n - 1] == ' '))
        --*n;
    return at;
}

int ruler_answer(const struct ruler_task *t, const char *prompt, const char *const *refs, size_t n, struct str *out, struct err *e)
{
    struct place pl[MAX_REFS];
    size_t len = strlen(prompt), ln = 0;
    const char *list = t->kind == K_CWE ? last_list(prompt, &ln) : NULL;
    if (n > ARRAY_LEN(pl))
        return ERR(e, E_INPUT, "task '%s': %zu references; at most %zu", t->name, n, ARRAY_LEN(pl));
    for (size_t i = 0; i < n; i++) {
        pl[i].ref = i;
        pl[i].at = t->kind == K_NIAH  ? find_bytes(prompt, len, refs[i], strlen(refs[i]))
                   : t->kind == K_CWE ? place_in_list(list, ln, refs[i])
                                      : 0;
        if (pl[i].at < 0)
            return ERR(e, E_INPUT, "task '%s': the answer '%s' does not stand in the prompt", t->name, refs[i]);
    }
    /* several keys are answered in the order asked, the values of one key in the order in which they stand in the text */
    for (size_t i = 0; t->kind == K_NIAH && i < n; i++)
        pl[i].at += (int64_t)(i / (size_t)t->v) * (int64_t)(len + 1);
    qsort(pl, n, sizeof *pl, by_place);
    bool blank = len && prompt[len - 1] == ' ';
    for (size_t i = 0; i < n; i++) {
        const char *r = refs[pl[i].ref];
        if (t->kind == K_QA && i)
            break;
        if (t->kind == K_NIAH && i)
            str_putc(out, ',');
        if (i || !blank)
            str_putc(out, ' ');
        if (t->kind == K_CWE)
            str_printf(out, "%zu. ", i + 1);
        str_puts(out, r);
    }
    if (t->kind == K_NIAH)
        str_putc(out, '.');
    return str_ok(out, "an answer", e);
}

/* ---- samples ---- */

struct each {
    const struct ruler_task *t;
    int (*fn)(void *ctx, const struct ruler_sample *s, struct err *e);
    void *ctx;
};

static int one_sample(void *ctx, int64_t line, const struct jdoc *d, struct err *e)
{
    const struct each *x = ctx;
    const char *input, *prefix, *refs[MAX_REFS];
    char what[320];
    const json_t *outputs;
    int64_t length;
    /* lm-evaluation-harness joins its gen_prefix with the task's delimiter: two newlines for cwe, else a space */
    bool harness = json_object_get(d->root, "gen_prefix") != NULL;
    const char *delimiter = !harness ? "" : x->t->kind == K_CWE ? "\n\n" : " ";
    if (jget_str(d, d->root, "", "input", &input, e) || jget_str(d, d->root, "", harness ? "gen_prefix" : "answer_prefix", &prefix, e) ||
        jget_arr(d, d->root, "", "outputs", &outputs, e) || jget_i64(d, d->root, "", "length", 0, INT64_MAX, &length, e))
        return err_wrap(e, "line %" PRId64, line + 1);
    size_t n;
    snprintf(what, sizeof what, "%s: line %" PRId64, d->file, line + 1);
    TRY(refs_of(outputs, what, refs, &n, e));
    struct str prompt = STR_INIT, answer = STR_INIT;
    str_printf(&prompt, "%s%s%s", input, delimiter, prefix);
    int rc = str_ok(&prompt, "a prompt", e);
    rc = rc ? rc : ruler_answer(x->t, str_c(&prompt), refs, n, &answer, e);
    if (!rc) {
        struct ruler_sample s = {x->t->name, str_c(&prompt), str_c(&answer), refs, n, line, x->t->gen_tokens, length};
        rc = x->fn(x->ctx, &s, e);
    } else
        err_wrap(e, "%s: line %" PRId64, d->file, line + 1);
    str_free(&prompt);
    str_free(&answer);
    return rc;
}

int ruler_each_sample(const char *dir, const char *tasks, int (*fn)(void *ctx, const struct ruler_sample *s, struct err *e), void *ctx,
                      struct err *e)
{
    const struct ruler_task *t[RULER_MAX_TASKS];
    struct task_set set;
    size_t n = 0;
    TRY(task_set_of(&set, dir, e));
    int rc = tasks_present(&set, dir, "validation.jsonl", tasks, t, &n, e);
    for (size_t i = 0; !rc && i < n; i++) {
        char path[1024], sub[64];
        struct each x = {t[i], fn, ctx};
        snprintf(sub, sizeof sub, "%s/validation.jsonl", t[i]->name);
        rc = jsonl_each(path_join(path, dir, sub), false, NULL, one_sample, &x, e);
    }
    task_set_free(&set);
    return rc;
}
