#include "cli/lmeval_glue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/jwrite.h"

int lmeval_data(const char *given, char dir[1024], bool *bundled, struct err *e)
{
    const char *env = getenv("DASHLAB_DATA");
    const char *root = given ? given : env && *env ? env : NULL;
    *bundled = !root;
    if (!root)
        return cli_bundled(dir, "lmeval/data", e);
    snprintf(dir, 1024, "%s", root);
    return dir_exists(dir) ? 0 : ERR(e, E_INPUT, "'%s'%s is no folder", root, given ? "" : " (from $DASHLAB_DATA)");
}

enum { COLUMNS = 7 };
struct source {
    const struct lme_task *task;
    enum lme_split split;
    const char *f[COLUMNS]; /* task, split, rows, content_sha256, file, file_sha256, source */
};
/* What was found for a line of sources.tsv. */
struct found {
    const char *state; /* "ok", "subset", "differs", "damaged", "missing" */
    char path[1024], why[512];
    int64_t rows;
};

static void look(const struct source *s, const char *dir, bool bundled, struct found *f)
{
    struct err why = ERR_INIT;
    struct lme_docs d;
    char hex[65];
    int64_t want = 0;
    *f = (struct found){.state = "missing"};
    if (!lme_find(s->task, s->split, dir, f->path))
        return;
    if (lme_load(s->task, s->split, dir, &d, &why) != 0 || lme_content_sha(s->task, &d, hex, &why) != 0) {
        f->state = "damaged";
        snprintf(f->why, sizeof f->why, "%.500s", why.msg);
    } else {
        parse_i64(s->f[2], &want);
        f->rows = d.n;
        f->state = !strcmp(hex, s->f[3]) ? "ok" : bundled && d.n < want ? "subset" : "differs";
        if (!strcmp(f->state, "differs"))
            snprintf(f->why, sizeof f->why, "%" PRId64 " rows, content sha256 %s; expected %s rows, %s", d.n, hex, s->f[2], s->f[3]);
    }
    lme_docs_free(&d);
}

static void show(const struct source *s, const struct found *f, bool json, struct jw *w, struct str *out)
{
    if (json) {
        jw_obj(w);
        jw_kstr(w, "task", s->f[0]);
        jw_kstr(w, "split", s->f[1]);
        jw_kstr(w, "state", f->state);
        jw_kstr(w, "path", f->path);
        jw_kstr(w, "expected_file", s->f[4]);
        jw_kstr(w, "expected_rows", s->f[2]);
        jw_kstr(w, "content_sha256", s->f[3]);
        jw_kstr(w, "file_sha256", s->f[5]);
        jw_kstr(w, "source", s->f[6]);
        jw_end_obj(w);
        return;
    }
    if (!strcmp(f->state, "missing"))
        str_printf(out, "%-8s %-42s %-4s %s from %s, %s rows, %s sha256 %s\n", f->state, s->f[0], s->f[1], s->f[4], s->f[6], s->f[2],
                   strcmp(s->f[5], "-") ? "file" : "content", strcmp(s->f[5], "-") ? s->f[5] : s->f[3]);
    else
        str_printf(out, "%-8s %-42s %-4s %s, %" PRId64 " of %s rows%s%s\n", f->state, s->f[0], s->f[1], f->path, f->rows, s->f[2],
                   *f->why ? ": " : "", f->why);
}

static bool split_line(char *line, struct source *s)
{
    char *save = NULL;
    int n = 0;
    for (char *p = strtok_r(line, "\t", &save); p && n < COLUMNS; p = strtok_r(NULL, "\t", &save))
        s->f[n++] = p;
    for (int i = 0; i < LME_N_TASKS && n == COLUMNS; i++)
        if (!strcmp(lme_task_at(i)->name, s->f[0])) {
            s->task = lme_task_at(i);
            s->split = strcmp(s->f[1], "pool") ? LME_EVAL : LME_POOL;
            return true;
        }
    return false; /* a comment or the heading */
}

/* The folder that dir is by its name ("piqa"), with a slash, when the list puts files there; else "". Files of other benchmarks are then
 * not looked for: train.jsonl is a name that several of them use. */
static const char *own_folder(const char *dir, const char *text, char own[80])
{
    char tab[82];
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/')
        n--;
    size_t from = n;
    while (from > 0 && dir[from - 1] != '/')
        from--;
    snprintf(own, 80, "%.*s/", (int)MIN(n - from, (size_t)70), dir + from);
    snprintf(tab, sizeof tab, "\t%s", own);
    return strstr(text, tab) ? own : "";
}

int lmeval_sources(const char *dir, bool bundled, bool json, struct str *out, struct benchmark_count *count, struct err *e)
{
    char path[1024], own_buf[80], *save = NULL;
    struct str text = STR_INIT;
    struct jw w;
    *count = (struct benchmark_count){0};
    TRY(cli_bundled(path, "lmeval/data/sources.tsv", e));
    TRY(file_read(path, 1 << 20, &text, e));
    const char *own = own_folder(dir, str_c(&text), own_buf);
    jw_init(&w, out, true);
    if (json)
        jw_arr(&w);
    for (char *line = strtok_r(text.p, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        struct source s = {0};
        struct found f = {.state = "missing"};
        if (!split_line(line, &s))
            continue;
        if (!strncmp(s.f[4], own, strlen(own)))
            look(&s, dir, bundled, &f);
        show(&s, &f, json, &w, out);
        count->ok += !strcmp(f.state, "ok");
        count->subset += !strcmp(f.state, "subset");
        count->missing += !strcmp(f.state, "missing");
        count->wrong += !strcmp(f.state, "differs") || !strcmp(f.state, "damaged");
    }
    if (json)
        jw_end_arr(&w);
    str_free(&text);
    return str_ok(out, "the list of sources", e);
}
